"""The oracle beside these tests."""

from vqx.testing import oracle as oracle
