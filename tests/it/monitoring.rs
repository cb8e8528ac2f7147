//! The board and the alert rules of `packaging/monitoring/`, against the metrics that a box really has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::TestRoot;

/// Labels that Prometheus adds, and the one of the bounds of histograms.
const ADDED: [&str; 4] = ["instance", "job", "le", "alertname"];

/// Series that Prometheus makes.
const OWN_SERIES: [&str; 1] = ["up"];

/// A label, an operator and a value.
type Matcher = (String, String, String);

/// The labels of a metric: the values of each, by its name.
type Labels = BTreeMap<String, BTreeSet<String>>;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The samples of a box with as many parts on as one box can have.
fn scraped() -> BTreeMap<String, Labels> {
    let views = "entity = [{ name = 'machine', join_key = 'machine_id', value_type = 'String' }]\n\
                 [[feature_view]]\nname = 'sensors'\nentities = ['machine']\nsource = { name = 'sensors_push' }\n\
                 schema = [{ name = 'rms', dtype = 'Float32' }]\n";
    // Nothing listens on these ports.
    let daemon = TestRoot::new()
        .models(&["add_sub", "broken_empty"])
        // Memory of a model is known where it has a process to itself.
        .file("add_sub/model.toml", "isolation = \"own\"\n")
        .views(views)
        .set("http.listen=[\"127.0.0.1:0\", \"unix:ledge.sock\", \"https://127.0.0.1:0\"]")
        .set("http.tls.self_signed=true")
        .set("mqtt.broker=mqtt://127.0.0.1:9")
        .set("camera=[{name=\"yard\", url=\"http://127.0.0.1:9/a.jpg\", model=\"add_sub\"}]")
        .set("alert=[{name=\"shop\", url=\"http://127.0.0.1:9/\", mqtt=true}]")
        .set("updates.repository=file:///nowhere/at/all")
        .set("audit.sync.url=http://127.0.0.1:9/audit")
        .set("audit.syslog.to=127.0.0.1:9")
        .set("audit.syslog.encrypted=false")
        .start();
    let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let call = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    assert_eq!(daemon.client().post_json("/v2/models/add_sub/infer", &call).status, 200);
    let text = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let mut found: BTreeMap<String, Labels> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let of_metric = found.entry(name.to_owned()).or_default();
        for (label, value) in matchers(labels).into_iter().map(|(label, _, value)| (label, value)) {
            of_metric.entry(label).or_default().insert(value);
        }
    }
    found
}

/// The table of docs/operating.md: the words in backticks of the row of each metric.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let text = file("docs/operating.md");
    let mut rows = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let words: BTreeSet<String> = row.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let names = row.split(" | ").next().unwrap().split('`').skip(1).step_by(2);
        for name in names {
            rows.insert(format!("ledge_{name}"), words.clone());
        }
    }
    rows
}

/// The label matchers in braces: label, operator and value. The text after the brace is left out.
fn matchers(text: &str) -> Vec<Matcher> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && !rest.starts_with('}') {
        let end = rest.find(['=', '!']).unwrap_or_else(|| panic!("no operator in {rest:?}"));
        let (label, after) = rest.split_at(end);
        let value = after.find('"').unwrap();
        let close = value + 1 + after[value + 1..].find('"').unwrap();
        found.push((label.trim().to_owned(), after[..value].trim().to_owned(), after[value + 1..close].to_owned()));
        rest = after[close + 1..].trim_start().trim_start_matches(',').trim_start();
    }
    found
}

/// The metrics of an expression, each with its matchers, and the labels of its groupings.
fn parts_of(expression: &str) -> (Vec<(String, Vec<Matcher>)>, BTreeSet<String>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut metrics, mut labels, mut rest) = (Vec::new(), BTreeSet::new(), expression);
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || "\"$".contains(c)) {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = &text[text.find('"').unwrap() + 1..];
            continue;
        }
        // A variable of the board.
        let is_variable = rest.starts_with('$');
        rest = rest.trim_start_matches('$');
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if is_variable {
            continue;
        }
        match word {
            "by" | "without" | "on" | "ignoring" | "group_left" | "group_right" => {
                let (list, after) = after.trim_start().strip_prefix('(').unwrap().split_once(')').unwrap();
                labels.extend(list.split(',').map(|label| label.trim().to_owned()));
                rest = after;
            }
            _ if word.starts_with("ledge_") || OWN_SERIES.contains(&word) => {
                let found = after.strip_prefix('{').map(matchers).unwrap_or_default();
                if let Some(inside) = after.strip_prefix('{') {
                    rest = &inside[inside.find('}').unwrap()..];
                }
                metrics.push((word.to_owned(), found));
            }
            _ => {}
        }
    }
    (metrics, labels)
}

/// The metrics of a box, from its scrape and from the documentation.
struct Known {
    scraped: BTreeMap<String, Labels>,
    documented: BTreeMap<String, BTreeSet<String>>,
}

impl Known {
    /// The mistakes in an expression.
    fn mistakes(&self, expression: &str) -> Vec<String> {
        let (metrics, groupings) = parts_of(expression);
        let mut mistakes = Vec::new();
        if metrics.is_empty() {
            mistakes.push("names no metric".to_owned());
        }
        let mut grouped = groupings;
        for (metric, matchers) in &metrics {
            if OWN_SERIES.contains(&metric.as_str()) {
                grouped.clear();
                continue;
            }
            // Of a histogram the table has the name without the suffix.
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| metric.strip_suffix(suffix));
            let row = self.documented.get(metric).or_else(|| self.documented.get(base?));
            let Some(row) = row else {
                mistakes.push(format!("{metric} is not in docs/operating.md"));
                continue;
            };
            let samples = self.scraped.get(metric);
            let has = |label: &str| match samples {
                Some(labels) => labels.contains_key(label),
                // A box has it only at times.
                None => row.contains(label),
            };
            grouped.retain(|label| !has(label));
            for (label, operator, value) in matchers {
                if ADDED.contains(&label.as_str()) {
                    continue;
                }
                if !has(label) {
                    mistakes.push(format!("{metric} has no label {label}"));
                } else if operator == "=" {
                    let is_known = samples.is_none_or(|labels| labels[label].contains(value)) || row.contains(value);
                    if !is_known {
                        mistakes.push(format!("{metric} has no {label}={value:?}"));
                    }
                }
            }
        }
        grouped.retain(|label| !ADDED.contains(&label.as_str()));
        mistakes.extend(grouped.iter().map(|label| format!("no metric of it has the label {label}")));
        mistakes
    }
}

/// The expressions of the rules, each with the name of its rule.
fn rules() -> Vec<(String, String)> {
    let text = file("packaging/monitoring/ledge.rules.yml");
    let (mut found, mut name) = (Vec::new(), String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if let Some(alert) = line.strip_prefix("- alert: ") {
            alert.clone_into(&mut name);
        } else if let Some(expression) = line.strip_prefix("expr: ") {
            let mut expression = expression.to_owned();
            if expression == ">-" {
                expression.clear();
                while let Some(more) = lines.next_if(|line| line.starts_with("          ")) {
                    expression.push_str(more.trim());
                    expression.push(' ');
                }
            }
            found.push((name.clone(), expression));
        }
    }
    found
}

/// The expressions of the board, each with the title of its panel.
fn board_expressions(board: &Value) -> Vec<(String, String)> {
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    let panels = board["panels"].as_array().unwrap().iter().flat_map(of_panel);
    let notes = board["annotations"]["list"].as_array().unwrap().iter();
    let notes = notes.filter_map(|note| Some(("annotations".to_owned(), note["expr"].as_str()?.to_owned())));
    panels.chain(notes).collect()
}

fn board() -> Value {
    serde_json::from_str(&file("packaging/monitoring/ledge.json")).unwrap()
}

#[test]
fn every_metric_and_label_of_the_board_and_the_rules_is_one_of_a_box() {
    let known = Known { scraped: scraped(), documented: documented() };
    let (rules, board) = (rules(), board());
    let panels = board_expressions(&board);
    assert!(rules.len() > 25 && panels.len() > 50, "{} rules, {} expressions", rules.len(), panels.len());
    let variable = board["templating"]["list"][1]["definition"].as_str().unwrap();
    let of_variable = ("the variable".to_owned(), variable.to_owned());
    let all = rules.iter().chain(&panels).chain([&of_variable]);
    let mistakes: Vec<_> =
        all.flat_map(|(of, text)| known.mistakes(text).into_iter().map(move |it| format!("{of}: {it}"))).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn an_expression_with_a_metric_or_label_that_no_box_has_is_found() {
    let documented = [("ledge_queue_depth", "model"), ("ledge_update_rollbacks_total", "cause")];
    let documented = documented.map(|(name, label)| (name.to_owned(), [label.to_owned()].into()));
    let labels: Labels = [("model".to_owned(), ["m".to_owned()].into())].into();
    let known = Known { scraped: [("ledge_queue_depth".to_owned(), labels)].into(), documented: documented.into() };
    for right in [
        "sum by (instance, model) (ledge_queue_depth{model=\"m\", instance=~\"$instance\"}) > 0",
        "rate(ledge_update_rollbacks_total{cause!~\"a|b\"}[$__rate_interval]) > 1e3",
        "up{job=\"ledge\"} == 0",
    ] {
        assert_eq!(known.mistakes(right), [""; 0], "{right}");
    }
    for (wrong, mistake) in [
        ("ledge_queue_depths", "ledge_queue_depths is not in docs/operating.md"),
        ("sum by (version) (ledge_queue_depth)", "no metric of it has the label version"),
        ("ledge_queue_depth{model=\"other\"}", "ledge_queue_depth has no model=\"other\""),
        ("ledge_queue_depth{version=\"1\"}", "ledge_queue_depth has no label version"),
        ("1 + 1", "names no metric"),
    ] {
        assert_eq!(known.mistakes(wrong), [mistake], "{wrong}");
    }
}

#[test]
fn every_rule_says_how_bad_it_is_and_what_to_do() {
    let text = file("packaging/monitoring/ledge.rules.yml");
    let rules: Vec<&str> = text.split("- alert: ").skip(1).collect();
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().unwrap();
        assert!(names.insert(name), "{name} is there twice");
        let has = |part: &str| rule.lines().any(|line| line.trim_start().starts_with(part));
        for part in ["expr: ", "summary: \"", "description: \""] {
            assert!(has(part), "{name} has no {part}");
        }
        assert!(has("severity: critical") || has("severity: warning"), "{name}");
        // These two rules have their own time windows.
        assert!(has("for: ") || ["LedgeRestarts", "LedgeUpdateRolledBack"].contains(&name), "{name} has no hold time");
        // Each is tested with its real time.
        assert!(file("tests/data/monitoring/ledge.rules.test.yml").contains(&format!("- name: {name}\n")), "{name}");
    }
}

#[test]
fn the_board_is_one_that_grafana_imports() {
    let board = board();
    assert!(board["schemaVersion"].as_u64() >= Some(39) && board["uid"].is_string() && board["id"].is_null());
    let variables = board["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance"]);
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "the id of {title} is there twice");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24 && place("w") > 0 && place("h") > 0, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        let kind = panel["type"].as_str().unwrap();
        assert!(["row", "stat", "timeseries", "table"].contains(&kind), "{title}: {kind}");
        if kind == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        let letters: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert!(letters.len() == targets.len() && !targets.is_empty(), "{title}");
        for target in targets.iter().chain([panel]) {
            assert_eq!(target["datasource"], json!({"type": "prometheus", "uid": "${datasource}"}), "{title}");
        }
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(expression.contains("instance=~\"$instance\""), "{title}: {expression}");
        }
    }
}
