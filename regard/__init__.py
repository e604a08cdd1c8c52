"""regard: a workbench for attention. raw -> Frontend -> Source -> Encoder -> Memory -> Decoder -> Answer."""

__version__ = "0.1.0"
