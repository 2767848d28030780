"""The interface of vLLM 0.32, vllm/v1/kv_offload/tiering/async_lookup.py: verdicts come after flush(), and stay while a request asks."""


class AsyncLookupManager:
    def __init__(self, tier_type):
        self._verdicts, self._asked, self._requests = {}, {}, {}

    def lookup(self, key, req_context):
        if key not in self._verdicts:
            self._verdicts[key] = None
            self._asked[key] = req_context
        self._requests.setdefault(req_context.req_id, set()).add(key)
        return self._verdicts[key]

    def flush(self):
        keys = list(self._asked)
        if keys:
            self._verdicts.update(zip(keys, self.batch_lookup(keys, self._asked[keys[0]])))
        self._asked.clear()

    def mark_miss(self, keys):
        self._verdicts.update({key: False for key in keys if key in self._verdicts})

    def cleanup(self, req_id):
        for key in self._requests.pop(req_id, ()):
            if not any(key in keys for keys in self._requests.values()):
                del self._verdicts[key]

    def shutdown(self):
        pass
