def get_current_vllm_config_or_none():
    return None
