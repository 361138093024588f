"""The metrics that are documented, shown and alerted on are those that a worker has."""

import json
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
import yaml

import postrow
from postrow.models import QueueDepth
from postrow.worker.metrics import Counts, State
from postrow.worker.prometheus import Page

NAME = re.compile(r"\b(?:postrow|process)_[a-z_]+")
LABELS = re.compile(r"\b((?:postrow|process)_[a-z_]+)\{([^}]*)\}")
SCRAPED = {"job", "instance"}  # labels that Prometheus adds


@pytest.fixture(scope="module")
def metrics():
    """Type and labels of each metric of a worker, by its name as it is asked for (for a histogram, its base)."""
    app = postrow.App("postgresql://nowhere")

    @app.queue("q").consumer()
    def handle(message):
        pass

    (consumer,) = app.consumers.values()
    counts = Counts([consumer])
    counts.ended(SimpleNamespace(consumer=consumer, ran=0.1), "done")
    counts.swept("leases", 1)
    state = State({consumer: 1}, 1, 1, 1, {"claimer": True}, 0.0, ready=True)
    depths = SimpleNamespace(now=lambda: ([QueueDepth("q", 1, 1, 1, 1, timedelta(1).total_seconds(), 1)], 1.0))
    page = Page(counts, state=lambda: state, depths=lambda: depths, worker="w", version="0")
    found = {}
    for family in page.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, labels)
    return found


def own(metrics):
    return {name: about for name, about in metrics.items() if name.startswith("postrow_")}


def base(name, metrics):
    """The metric that a name of a query is of."""
    of_histogram = re.sub(r"_(bucket|sum|count)$", "", name)
    return of_histogram if metrics.get(of_histogram, ("",))[0] == "histogram" else name


def queries(docs, file):
    if file.endswith(".yml"):
        rules = yaml.safe_load((docs.root / file).read_text(encoding="utf-8"))
        return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    board = json.loads((docs.root / file).read_text(encoding="utf-8"))
    variables = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return variables + [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]


def test_every_metric_is_documented_with_its_type_and_labels_and_no_other(docs, metrics):
    rows = docs.rows(docs.page("docs/reference/metrics.md").text)
    documented = {docs.code(row[0])[0]: (row[1], set(docs.code(row[2]))) for row in rows}
    assert documented == own(metrics)


@pytest.mark.parametrize("file", ["deploy/prometheus/alerts.yml", "deploy/grafana/postrow.json"])
def test_what_is_asked_of_prometheus_exists(file, docs, metrics):
    asked = queries(docs, file)
    assert len(asked) > 8
    for query in asked:
        for name in NAME.findall(query):
            assert base(name, metrics) in metrics, query
        for name, matchers in LABELS.findall(query):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
            assert labels <= metrics[base(name, metrics)][1] | SCRAPED, query
        assert query.count("(") == query.count(")"), query


def test_every_metric_of_a_queue_is_on_the_dashboard(docs, metrics):
    shown = {
        base(name, metrics) for query in queries(docs, "deploy/grafana/postrow.json") for name in NAME.findall(query)
    }
    assert set(own(metrics)) <= shown


def test_the_panels_of_the_dashboard_do_not_overlap(docs):
    board = json.loads((docs.root / "deploy/grafana/postrow.json").read_text(encoding="utf-8"))
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_alert_is_explained_and_no_other(docs):
    rules = yaml.safe_load((docs.root / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    table = docs.rows(docs.page("docs/howto/watch-it.md").sections("##")["Dashboard and alerts"])
    assert [docs.code(row[0])[0] for row in table] == names
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
