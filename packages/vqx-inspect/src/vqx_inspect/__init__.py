"""Pictures for vqx: which tokens each layer and head kept, on the text itself."""

from vqx_inspect.page import page
from vqx_inspect.recording import Recording, pieces, record

__all__ = ["Recording", "page", "pieces", "record"]
