//! Keeps account of pushes and acknowledgements, and checks that the rows are there.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use crate::client::Client;

/// Three views with one source, so that a push is one row in each, and one that is written by its name.
pub const VIEWS: &str = r#"
[[entity]]
name = "device"
value_type = "Int64"

[[feature_view]]
name = "plain"
entities = ["device"]
source = { name = "events" }
schema = [{ name = "number", dtype = "Int64" }, { name = "proof", dtype = "String" }]

[[feature_view]]
name = "lasting"
entities = ["device"]
ttl = "30d"
source = { name = "events" }
schema = [{ name = "number", dtype = "Int64" }, { name = "proof", dtype = "String" }]

[[feature_view]]
name = "counted"
entities = ["device"]
lateness = "20s"
source = { name = "events" }
schema = [{ name = "number", dtype = "Int64" }, { name = "proof", dtype = "String" }]

[[feature_view.aggregation]]
column = "number"
function = "count"
time_window = "30d"
slide_interval = "1d"
name = "count"

[[feature_view.aggregation]]
column = "number"
function = "sum"
time_window = "30d"
slide_interval = "1d"
name = "sum"

[[feature_view.aggregation]]
column = "number"
function = "last"
time_window = "30d"
slide_interval = "1d"
name = "last"

[[feature_view]]
name = "direct"
entities = ["device"]
source = { name = "unused" }
schema = [{ name = "number", dtype = "Int64" }, { name = "proof", dtype = "String" }]
"#;

/// The views of the source `events`.
const EVENTS: [&str; 3] = ["plain", "lasting", "counted"];

/// Entities are 0 to this.
pub const ENTITIES: i64 = 24;

/// Milliseconds of event time from one push to the next: a thousand pushes are within the lateness.
const STEP_MS: i64 = 20;

/// One push: the same number in all its rows, and an event time that grows with it.
#[derive(Debug, Clone)]
pub struct Sent {
    pub entities: Vec<i64>,
    /// By the view's name, and not by the source.
    pub direct: bool,
}

impl Sent {
    fn views(&self) -> &'static [&'static str] {
        if self.direct { &["direct"] } else { &EVENTS }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// 0: no row.
    latest: i64,
    count: i64,
    sum: i64,
}

/// The books of one store.
#[derive(Clone)]
pub struct Books {
    begin_ms: i64,
    padding: usize,
    last: i64,
    cells: BTreeMap<(&'static str, i64), Cell>,
    /// Sent, and not acknowledged.
    open: BTreeMap<i64, Sent>,
    /// Acknowledged, and how long the shim's log was by then.
    acknowledged: BTreeMap<i64, (Sent, u64)>,
    pub total: u64,
}

/// The findings of reading everything.
#[derive(Debug, Default)]
pub struct Findings {
    /// Acknowledged rows that are not there.
    pub lost: Vec<String>,
    /// Rows that were never pushed, or half of a push.
    pub wrong: Vec<String>,
}

impl Books {
    /// With proofs of this many bytes.
    pub fn new(padding: usize) -> Self {
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        Self {
            begin_ms: now - 10 * 86_400_000,
            padding,
            last: 0,
            cells: BTreeMap::new(),
            open: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            total: 0,
        }
    }

    /// Enters the next push; its number, its path and its body.
    pub fn next(&mut self, sent: Sent) -> (i64, &'static str, Value) {
        self.last += 1;
        let number = self.last;
        let at = jiff::Timestamp::from_millisecond(self.begin_ms + number * STEP_MS).unwrap().to_string();
        let rows = sent.entities.len();
        let proofs: Vec<_> = sent.entities.iter().map(|entity| self.proof(*entity, number)).collect();
        let df = json!({
            "device": sent.entities, "number": vec![number; rows], "proof": proofs, "event_timestamp": vec![at; rows],
        });
        let (path, body) = if sent.direct {
            ("/write-to-online-store", json!({"feature_view_name": "direct", "df": df}))
        } else {
            ("/push", json!({"push_source_name": "events", "df": df, "to": "online"}))
        };
        self.open.insert(number, sent);
        (number, path, body)
    }

    fn proof(&self, entity: i64, number: i64) -> String {
        let proof = blake3::hash(format!("{entity} {number}").as_bytes()).to_hex();
        proof.as_str().repeat(self.padding.div_ceil(proof.len()))
    }

    /// A push was acknowledged, when the log of the shim had this length.
    pub fn acknowledge(&mut self, number: i64, mark: u64) {
        let sent = self.open.remove(&number).unwrap();
        self.acknowledged.insert(number, (sent, mark));
        self.total += 1;
    }

    /// A push was refused for good: nothing of it may be there.
    pub fn refuse(&mut self, number: i64) {
        self.open.remove(&number).unwrap();
    }

    /// The number of pushes acknowledged since the last settlement.
    pub fn recent(&self) -> usize {
        self.acknowledged.len()
    }

    /// The end came when the log had this length: what was acknowledged later was not.
    pub fn settle(&mut self, at: u64) {
        for (number, (sent, mark)) in std::mem::take(&mut self.acknowledged) {
            if mark > at {
                self.open.insert(number, sent);
                self.total -= 1;
                continue;
            }
            for view in sent.views() {
                for entity in &sent.entities {
                    let cell = self.cells.entry((view, *entity)).or_default();
                    cell.latest = cell.latest.max(number);
                    cell.count += 1;
                    cell.sum += number;
                }
            }
        }
    }

    /// Reads everything. Values that were read once are expected again from then on. An error: there was no answer, and
    /// why.
    pub fn check(&mut self, client: &mut Client) -> io::Result<Result<Findings, String>> {
        let mut findings = Findings::default();
        let mut found: BTreeMap<(&'static str, i64), Cell> = BTreeMap::new();
        let entities: Vec<i64> = (0..ENTITIES).collect();
        for view in EVENTS.into_iter().chain(["direct"]) {
            let mut features = vec![format!("{view}:number"), format!("{view}:proof")];
            if view == "counted" {
                features.extend(["count", "sum", "last"].map(|name| format!("{view}:{name}")));
            }
            let request = json!({"features": features, "entities": {"device": entities}});
            let answer = client.try_post_json("/get-online-features", &request)?;
            if answer.status != 200 {
                return Ok(Err(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body))));
            }
            let answer = answer.json();
            for (at, entity) in entities.iter().enumerate() {
                let column = |column: usize| {
                    let column = &answer["results"][column];
                    (column["statuses"][at].as_str().unwrap(), &column["values"][at])
                };
                let cell = self.judge(view, *entity, column, &mut findings);
                found.insert((view, *entity), cell);
            }
        }
        self.judge_pushes(&found, &mut findings);
        self.open.clear();
        self.cells = found;
        Ok(Ok(findings))
    }

    /// One entity of one view against the books.
    fn judge<'v>(
        &self,
        view: &'static str,
        entity: i64,
        column: impl Fn(usize) -> (&'v str, &'v Value),
        findings: &mut Findings,
    ) -> Cell {
        let known = self.cells.get(&(view, entity)).copied().unwrap_or_default();
        let open = self.open.iter().filter(|(_, sent)| sent.views().contains(&view) && sent.entities.contains(&entity));
        let open: Vec<i64> = open.map(|(number, _)| *number).collect();
        let place = format!("{view} of {entity}");
        let (status, number) = column(1);
        if status == "NOT_FOUND" {
            if known.latest > 0 {
                findings.lost.push(format!("{place}: nothing, after {} was acknowledged", known.latest));
            }
            return Cell::default();
        }
        let (Some(latest), "PRESENT") = (number.as_i64(), status) else {
            findings.wrong.push(format!("{place}: {status} {number}"));
            return known;
        };
        if column(2) != ("PRESENT", &json!(self.proof(entity, latest))) {
            findings.wrong.push(format!("{place}: number {latest} has another one's proof"));
        }
        if latest < known.latest {
            findings.lost.push(format!("{place}: {latest}, after {} was acknowledged", known.latest));
        } else if latest > known.latest && !open.contains(&latest) {
            findings.wrong.push(format!("{place}: {latest}, which nobody sent after {}", known.latest));
        }
        let mut cell = Cell { latest, ..known };
        if view == "counted" {
            let [count, sum, last] = [3, 4, 5].map(|at| whole(column(at).1));
            (cell.count, cell.sum) = (count, sum);
            if last != latest {
                findings.wrong.push(format!("{place}: the last is {last}, and the newest row {latest}"));
            }
            if count < known.count {
                findings.lost.push(format!("{place}: {count} events, after {} were acknowledged", known.count));
            } else if !is_sum_of(usize::try_from(count - known.count).unwrap(), sum - known.sum, &open) {
                let Cell { count: had, sum: added, .. } = known;
                findings
                    .wrong
                    .push(format!("{place}: {count} events make {sum}; {had} made {added}, open are {open:?}"));
            }
        }
        cell
    }

    /// All rows of a push are there, or none.
    fn judge_pushes(&self, found: &BTreeMap<(&'static str, i64), Cell>, findings: &mut Findings) {
        for (number, sent) in &self.open {
            let places = || sent.views().iter().flat_map(|view| sent.entities.iter().map(|entity| (*view, *entity)));
            let latest = |place| found.get(&place).map_or(0, |cell: &Cell| cell.latest);
            if places().any(|place| latest(place) == *number) && places().any(|place| latest(place) < *number) {
                findings.wrong.push(format!("push {number} is there by half"));
            }
        }
    }
}

/// A whole number, which a sum is in the form of a double.
fn whole(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.to_string().strip_suffix(".0")?.parse().ok()).unwrap_or(-1)
}

/// Returns `true` if exactly `count` of the numbers add up to `sum`.
fn is_sum_of(count: usize, sum: i64, numbers: &[i64]) -> bool {
    match (count, numbers) {
        (0, _) => sum == 0,
        (_, []) => false,
        (_, [first, rest @ ..]) => {
            count <= numbers.len() && (is_sum_of(count - 1, sum - first, rest) || is_sum_of(count, sum, rest))
        }
    }
}
