"""Renders dashboards as Grafana's classic JSON with the Foundation SDK.

File provisioning of all Grafana versions and grafana.com accept the classic form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, prometheus, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import stat as number
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from dashboards.panels import (
    CLUSTER,
    GPU,
    JOB,
    NEAREST_GPU,
    NODE,
    NOT_KNOWN,
    PLAIN,
    REASON,
    UUID,
    Colors,
    Column,
    Dashboard,
    Panel,
    Words,
)
from dashboards.promql import FIRING, MIN_STEP, PRICE, RATE_INTERVAL, alerts, series

SOURCE = kinds.DataSourceRef(type_val="prometheus", uid="${datasource}")
LETTERS = "ABCDEFGH"
_COLUMNS = ("worst", *map(str, range(36)))
"""First columns of a matrix from left to right, such as NVLinks. Others follow by name."""
_GENERATED = "Generated: change dashboards/, not this file."
_CONTEXT = "${datasource:queryparam}&${__url_time_range}"
"""Parameters of a link that keep the data source and the time range."""


def render(dashboard: Dashboard) -> str:
    """Return the JSON of a dashboard."""
    written = (
        build.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(f"{dashboard.description} {_GENERATED}")
        .tags(["gpumon"])
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .links([_other_dashboards()])
        .variables(_variables(dashboard))
        .annotations(_annotations())
    )
    place = 0
    for section in dashboard.sections:
        place += 1
        written.with_row(build.Row(section.title).id(place))
        for panel in section.panels:
            place += 1
            written.with_panel(_panel(panel, one_node=dashboard.one_node).id(place))
    return json.dumps(written.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


# Variables, annotations and links


def _variables(dashboard: Dashboard) -> list[Any]:
    nodes, on_node = 'cluster=~"$cluster"', 'cluster=~"$cluster", instance=~"$instance"'
    jobs = f"label_values(gpumon_job_gpus{{{on_node}}}, job_id)"
    return [
        build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _variable("cluster", "Cluster", "label_values(gpumon_build_info, cluster)"),
        # Every agent exports build_info, whether its driver answers or not: a blind node stays in the list.
        _variable("instance", "Node", f"label_values(gpumon_build_info{{{nodes}}}, instance)", one=dashboard.one_node),
        _variable("gpu", "GPU", f"label_values(gpumon_gpu_info{{{on_node}}}, gpu)", one=dashboard.one_gpu),
        _variable("uuid", "uuid", f'label_values(gpumon_gpu_info{{{on_node}, gpu=~"$gpu"}}, uuid)'),
        *([_variable("job_id", "Job", jobs, one=True)] if dashboard.one_job else []),
        *([_price()] if dashboard.priced else []),
    ]


def _price() -> build.TextBoxVariable:
    chosen = model.VariableOption(selected=True, text=PRICE, value=PRICE)
    return build.TextBoxVariable("price").label("Price of a GPU hour").default_value(PRICE).current(chosen)


def _variable(name: str, label: str, query: str, *, one: bool = False) -> build.QueryVariable:
    """Return a variable. Unless it has one value, it selects all by default, including those that no query lists."""
    variable = (
        build.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": f"gpumon-{name}"})
        .definition(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(not one)
        .include_all(not one)
    )
    if not one:
        variable.all_value(".*").current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable


def _annotations() -> list[Any]:
    """Return the annotations, one value a minute: critical alerts, Xids, starts of agents and samplers, maintenance."""
    started, restarts = series("gpumon_start_timestamp_seconds"), series("gpumon_sampler_restarts_total")
    return [
        _annotation(
            "Alerts", "red", alerts(FIRING, 'severity="critical"'), "{{alertname}}", "{{instance}} GPU {{gpu}}"
        ),
        _annotation(
            "Xids",
            "orange",
            f"{series('gpumon_gpu_xid_last_timestamp_seconds')} > time() - 60",
            "Xid {{xid}}",
            "{{instance}} GPU {{gpu}}",
        ),
        _annotation(
            "Agent started",
            "purple",
            # A restart between two scrapes leaves no gap: the time has changed. After a gap only a recent one counts.
            f"{started} != {started} offset 1m or ({started} unless {started} offset 1m) > time() - 300",
            "Agent started",
            "{{instance}}",
        ),
        _annotation(
            "Sampler replaced",
            "purple",
            f"{restarts} > {restarts} offset 1m",
            "Sampler replaced: {{reason}}",
            "{{instance}}: the child that calls the driver was replaced",
        ),
        _annotation(
            "Maintenance",
            "blue",
            f"{series('gpumon_maintenance_end_timestamp_seconds')} > time()",
            "Maintenance",
            "{{instance}}: no alert pages",
        ),
    ]


def _annotation(name: str, color: str, expr: str, title: str, text: str) -> build.AnnotationQuery:
    return (
        build.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(color)
        .expr(expr)
        .title_format(title)
        .text_format(text)
        .step("60s")
    )


def _other_dashboards() -> build.DashboardLink:
    return (
        build.DashboardLink("gpumon")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["gpumon"])
        .icon("external link")
        .tooltip("Other dashboards of gpumon, for the same nodes and time range")
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _link(title: str, uid: str, **chosen: str) -> build.DashboardLink:
    """Return a link to a dashboard. `chosen`: Grafana's expressions for the values of its variables, by their names.

    The cluster is that of the row or series, whose expression is empty without such a label, else the chosen ones.
    """
    cluster = "" if "cluster" in chosen else "&${cluster:queryparam}"
    variables = cluster + "".join(f"&var-{name}={value}" for name, value in chosen.items())
    return build.DashboardLink(title).url(f"/d/{uid}?{_CONTEXT}{variables}")


# Panels


def _panel(panel: Panel, *, one_node: bool) -> Any:
    built: Any = _KINDS[panel.kind](panel)
    built.title(panel.title).description(panel.description).datasource(SOURCE)
    built.targets([_target(panel, letter, query.expr, query.legend) for letter, query in _lettered(panel)])
    built.grid_pos(model.GridPos(h=panel.height, w=panel.width))
    built.unit(panel.unit).no_value(NOT_KNOWN)
    built.thresholds(_thresholds(panel.colors)).mappings(_mappings(panel.words))
    if any(RATE_INTERVAL in query.expr for query in panel.queries):
        built.interval(f"{MIN_STEP}s")
    if panel.minimum is not None:
        built.min(panel.minimum)
    if panel.maximum is not None:
        built.max(panel.maximum)
    if panel.kind in {"graph", "timeline"} and (link := _series_link(panel.queries[0].legend, one_node=one_node)):
        built.data_links([link])
    return built


def _series_link(legend: str, *, one_node: bool) -> build.DashboardLink | None:
    """Return the link of a line or row to its GPU or node; None if it is about neither."""
    instance = "${instance}" if one_node else "${__field.labels.instance}"
    cluster = {} if one_node else {"cluster": "${__field.labels.cluster}"}
    if "{{gpu}}" in legend:
        labels = {"gpu": "${__field.labels.gpu}", "uuid": "${__field.labels.uuid}"}
        return _link("Dashboard of this GPU", "gpumon-gpu", **cluster, instance=instance, **labels)
    if "{{instance}}" in legend:
        return _link("Dashboard of this node", "gpumon-node", **cluster, instance=instance)
    return None


def _lettered(panel: Panel) -> list[tuple[str, Any]]:
    return list(zip(LETTERS, panel.queries, strict=False))


def _target(panel: Panel, letter: str, expr: str, legend: str) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(SOURCE)
        .editor_mode(QueryEditorMode.CODE)
        .expr(expr)
        .legend_format(legend or "__auto")
        .format(PromQueryFormat.TABLE if panel.kind in {"table", "matrix"} else PromQueryFormat.TIME_SERIES)
    )
    return target.instant() if panel.instant else target.range()


def _thresholds(colors: Colors) -> build.ThresholdsConfig:
    steps = [model.Threshold(value=value, color=color) for value, color in colors.items()]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _mappings(words: Words, nan: str = NOT_KNOWN) -> list[model.ValueMapping]:
    """Return the texts of these values. `nan`: text of NaN, which states that there is no number."""
    results = {
        f"{value:g}": model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(words.items())
    }
    empty = model.DashboardSpecialValueMapOptions(
        match=model.SpecialValueMatch.NA_N, result=model.ValueMappingResult(text=nan, color="text", index=len(results))
    )
    return [*([model.ValueMap(options=results)] if results else []), model.SpecialValueMap(options=empty)]


def _stat(_: Panel) -> number.Panel:
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    return number.Panel().reduce_options(reduced).graph_mode(kinds.BigValueGraphMode.NONE)


def _bars(_: Panel) -> bargauge.Panel:
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    gauge = bargauge.Panel().reduce_options(reduced).orientation(kinds.VizOrientation.HORIZONTAL)
    return gauge.display_mode(kinds.BarGaugeDisplayMode.BASIC).color_scheme(_by_series())


def _by_series() -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC)


def _graph(panel: Panel) -> timeseries.Panel:
    drawn = (
        timeseries.Panel()
        .color_scheme(_by_series())
        .show_points(kinds.VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    )
    return drawn.draw_style(kinds.GraphDrawStyle.BARS).fill_opacity(60) if panel.increments else drawn


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _timeline(_: Panel) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .show_value(kinds.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.SINGLE).sort(kinds.SortOrder.NONE))
    )


def _table(panel: Panel) -> table.Panel:
    shown = table.Panel().filterable(True).transformations(_transformations(panel))
    shown.cell_options(kinds.TableColorTextCellOptions())
    if panel.sort:
        shown.sort_by([common.TableSortByFieldState().display_name(panel.sort).desc(not panel.lowest_first)])
    for column in panel.columns:
        if properties := _properties(column, panel.columns):
            shown.override_by_name(column.heading, properties)
    return shown


def _properties(column: Column, columns: Any) -> list[model.DynamicConfigValue]:
    """Return the options of one column that differ from those of the table."""
    properties: dict[str, Any] = {}
    headings = {each.heading for each in columns}
    if column.is_value:
        properties["unit"] = column.unit
        properties["mappings"] = _mappings(column.words, nan="")
    if column.colors is not PLAIN:
        properties["thresholds"] = _thresholds(column.colors).build()
    cluster = {"cluster": "${__data.fields.cluster}"} if CLUSTER in headings else {}
    if column.heading == NODE:
        chosen = {**cluster, "instance": "${__value.raw}"}
        properties["links"] = [_link("Dashboard of this node", "gpumon-node", **chosen).build()]
    if column.heading in {GPU, NEAREST_GPU}:
        instance = "${__data.fields.node}" if NODE in headings else "${instance}"
        chosen = {**cluster, "instance": instance, "gpu": "${__value.raw}"}
        chosen |= {"uuid": "${__data.fields.uuid}"} if UUID in headings else {}
        properties["links"] = [_link("Dashboard of this GPU", "gpumon-gpu", **chosen).build()]
    if column.heading == JOB:
        chosen = {**cluster, "instance": "$__all", "job_id": "${__value.raw}"}
        properties["links"] = [_link("Dashboard of this job", "gpumon-job", **chosen).build()]
    if column.heading == REASON:
        properties["custom.cellOptions"] = kinds.TableColorTextCellOptions(wrap_text=True)
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()]


def _transformations(panel: Panel) -> list[model.DataTransformerConfig]:
    """Return the steps to one line for each set of labels, with the named columns only and in their order."""
    names = [_field(column, panel) for column in panel.columns]
    renamed = {name: column.heading for name, column in zip(names, panel.columns, strict=True)}
    order = {name: place for place, name in enumerate(names)}
    return [
        _step("merge"),
        _step("filterFieldsByName", include={"names": names}),
        _step("organize", excludeByName={}, indexByName=order, renameByName=renamed),
    ]


def _field(column: Column, panel: Panel) -> str:
    """Return Grafana's name of the field that a column shows: the values of a single query have no letter."""
    if not column.is_value:
        return column.source
    return "Value" if len(panel.queries) == 1 else f"Value #{column.source}"


def _matrix(panel: Panel) -> table.Panel:
    rows, columns = panel.columns
    pivot = {"rowField": rows.source, "columnField": columns.source, "valueField": "Value", "emptyValue": "null"}
    corner = f"{rows.source}\\{columns.source}"
    shown = table.Panel().cell_options(kinds.TableColoredBackgroundCellOptions())
    order = {name: place for place, name in enumerate((corner, *_COLUMNS))}
    organized = _step("organize", indexByName=order, renameByName={corner: rows.heading})
    by_column = _step("sortBy", fields={}, sort=[{"field": columns.source}])  # a matrix keeps the order of its rows
    shown.transformations([by_column, _step("groupingToMatrix", **pivot), organized])
    shown.sort_by([common.TableSortByFieldState().display_name(panel.sort or rows.heading).desc(bool(panel.sort))])
    return shown.override_by_name(rows.heading, _properties(rows, panel.columns))


def _step(name: str, **options: Any) -> model.DataTransformerConfig:
    return model.DataTransformerConfig(id_val=name, options=options)


_KINDS: Mapping[str, Any] = {
    "stat": _stat,
    "bars": _bars,
    "graph": _graph,
    "timeline": _timeline,
    "table": _table,
    "matrix": _matrix,
}
