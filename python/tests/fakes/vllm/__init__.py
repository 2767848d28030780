"""What kvc's connectors import of vLLM 0.32, with its names and signatures and nothing else."""
