"""The version of kvc.h, from which make writes this file."""

VERSION = "1.0.0"
