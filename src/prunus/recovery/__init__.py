"""Quality without training."""
from prunus.recovery._reconstruct import ReconstructOptions, reconstruct
__all__ = ["ReconstructOptions", "reconstruct"]
