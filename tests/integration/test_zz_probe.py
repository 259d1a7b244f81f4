import time
import penstock.engine.writing as w
from tests.integration.test_sql_stage import orders


def test_probe(pipe, topic, produce, monkeypatch):
    name = topic(2)
    produce(name, orders("1", "2", "three", "4", None), partition=0)
    produce(name, orders("5", "6"), partition=1)
    pipe.describe(
        name, schema="id: long, text: string", sql="select: ['partition', 'offset', 'cast(text as int) as number']"
    )
    for fn in ("write_batch", "probe_batch"):
        orig = getattr(w, fn)

        def timed(*a, _o=orig, _n=fn, **k):
            t = time.time()
            try:
                return _o(*a, **k)
            except Exception as e:
                print(_n, "failed", type(e), time.time() - t)
                raise
            finally:
                print(_n, time.time() - t)

        monkeypatch.setattr(w, fn, timed)
    oc = w._last_cause

    def lc(e):
        print("TEXT<<", type(e), str(e)[:600], ">>", len(str(e)))
        return oc(e)

    monkeypatch.setattr(w, "_last_cause", lc)
    pipe.run_to_end()
