"""LMCache's adapter for clients, as 0.5.7 has it, as far as kvc's adapter uses it: keys, sizes, listeners' calls."""

import select
import threading


def _object_key_to_string(key):
    return f"{key.model}@01000100@0@{key.chunk.hex()}"


class NativeConnectorL2Adapter:
    def __init__(self, native_client, memory_tags, max_capacity_gb=0, type_name=""):
        self.tags = memory_tags
        self.client, self.capacity, self.type_name = native_client, max_capacity_gb, type_name
        self.used, self.told = 0, []
        self._key_sizes, self._lock = {}, threading.Lock()

    def _wait(self, number):
        poll = select.poll()
        poll.register(self.client.event_fd(), select.POLLIN)
        while True:
            assert poll.poll(30_000), "no completion came"
            for done in self.client.drain_completions():
                assert done[0] == number
                return done

    def store(self, keys, buffers):
        """Stores chunks, and notes what they take as submit_store_task() and the thread for completions do."""
        views = [memoryview(buffer) for buffer in buffers]
        done = self._wait(self.client.submit_batch_set([_object_key_to_string(key) for key in keys], views))
        if done[1]:
            sizes = [0 if key in self._key_sizes else len(view) for key, view in zip(keys, views)]
            self._key_sizes.update((key, size) for key, size in zip(keys, sizes) if size)
            self._notify_keys_stored(keys, sizes)
        return done[1]

    def delete(self, keys):
        done = self._wait(self.client.submit_batch_delete([_object_key_to_string(key) for key in keys]))
        gone = [key for key, there in zip(keys, done[3]) if there and key in self._key_sizes]
        self._notify_keys_deleted(gone, [self._key_sizes.pop(key) for key in gone])

    def _notify_keys_stored(self, keys, sizes):
        self.used += sum(sizes)
        self.told.append(sizes)

    def _notify_keys_deleted(self, keys, sizes):
        self.used -= sum(sizes)

    def report_status(self):
        return {"is_healthy": True, "type": self.type_name}

    def close(self):
        self.client.close()
