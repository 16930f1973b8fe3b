"""Q-Filters for vqx: keep the rows whose keys lie along the queries' main direction."""

from vqx_qfilters.method import QFiltersConfig

__all__ = ["QFiltersConfig"]
