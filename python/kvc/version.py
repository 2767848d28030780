"""The version of kvc.h, from which make writes this file."""

VERSION = "0.9.0"
