"""Configuration files of Joey NMT, OpenNMT-py and fairseq as recipes, with what could not be taken over."""
