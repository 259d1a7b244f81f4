from tests.exports import *
from tests.kafka import *
import json, pytest
def run(export, topic, produce, values, **kw):
    name=topic(); produce(name, values)
    export.describe(name, types=[type_of("A", schema="infer"), type_of("B")], **kw)
    heard=None
    try:
        heard=export.run_to_end()
    except BaseException as e:
        print("ERR", repr(e), str(e)[:600])
    print(export.files())
    try: print(export.quarantined("offset","error"))
    except Exception as e: print("noq", e)
    for n in "AB":
        try: print(n, pl.read_parquet(f"{export.root}/{n}/**/*.parquet").to_dicts()[:5])
        except Exception as e: print(n,"none")
    print(export.state.types.keys(), [t.totals for t in export.state.partitions.values()])

@pytest.mark.parametrize("values", [
 ['{"type":"A","id":1}'],
 ['{"type":"A","id":1}', event("A",2), event("B",3)],
 ['{"type":"A"', '["A"]', event("B",3)],
 ['{"type":"A","at":null}', event("B",3)],
 ['{"type":"A","at":5}', event("B",3)],
 ['{"type":"A","at":{"x":1}}', event("B",3)],
 ['{"type":"A","at":true}', event("B",3)],
 ['{"type":"A","at":"2026-03-01","":1,"a b":2,"day":"x","kafka_offset":9,"Type":4,"n":null,"e":{},"l":[], "\\u0000":3, "x/y":2}', event("B",3)],
 ['{"type":"A","at":"2026-03-01","id":"x"}', event("A",3)],
 ['{"type":"A","type":"A","at":"2026-03-01","id":"x"}', event("B",3)],
])
def test_x(export, topic, produce, values):
    print("\n=====", values)
    run(export, topic, produce, values)
