//! `docs/access.tsv`: each route and who may use it, as reviewed by people. It is the expectation of the tests of
//! access, and the tables of docs/access.md are printed from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ledge::identity::access::Role;
use serde_json::{Value, json};

/// A route, and a request that it answers to a caller with permission.
pub struct Call {
    pub method: &'static str,
    /// As in the router's table.
    pub route: &'static str,
    /// The status for a caller with permission.
    pub status: u16,
    /// The path of the request, where the model is `{model}`.
    pub path: &'static str,
    pub body: fn() -> Value,
}

const fn get(route: &'static str) -> Call {
    Call { method: "GET", route, status: 200, path: route, body: || Value::Null }
}

const fn post(route: &'static str, body: fn() -> Value) -> Call {
    Call { method: "POST", body, ..get(route) }
}

const fn put(route: &'static str, body: fn() -> Value) -> Call {
    Call { method: "PUT", body, ..get(route) }
}

impl Call {
    const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    const fn path(self, path: &'static str) -> Self {
        Self { path, ..self }
    }
}

fn nothing() -> Value {
    json!({})
}

fn ask() -> Value {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    json!({"inputs": [input("INPUT0"), input("INPUT1")]})
}

/// The row that a caller pushes. Reading it back proves that no other caller did.
fn row(by: u64) -> Value {
    json!({"driver_id": [by], "event_timestamp": ["2026-01-01T00:00:00Z"], "conv_rate": [0.5], "trips": [by]})
}

fn push() -> Value {
    json!({"push_source_name": "driver_push", "df": row(1), "to": "online"})
}

fn write() -> Value {
    json!({"feature_view_name": "driver_stats", "df": row(2)})
}

fn read() -> Value {
    json!({"features": ["driver_stats:trips"], "entities": {"driver_id": [1, 2]}})
}

fn normal() -> Value {
    json!({"feature_view": "driver_stats", "entity": {"driver_id": 1}})
}

/// A result that nobody has.
const RESULT: &str = "/documentintelligence/documentModels/prebuilt-read/analyzeResults/0?api-version=2024-11-30";

/// A request for each route. The one that unloads comes before the one that loads.
pub const CALLS: &[Call] = &[
    get("/v2/health/live"),
    get("/v2/health/ready"),
    get("/health"),
    get("/v1/status/ping"),
    // No form.
    post("/v1/vision/detection", nothing).status(400),
    post("/v1/vision/face", nothing).status(400),
    post("/v1/vision/scene", nothing).status(400),
    post("/v1/vision/custom/list", nothing),
    post("/v1/vision/custom/{model}", nothing).status(400),
    // No body.
    post("/v1/embeddings", nothing).status(400),
    get("/v1/models"),
    // The model is there, and embeds no texts.
    get("/v1/models/{model}").status(404),
    // No document, and no result of this caller.
    post("/documentintelligence/documentModels/{document_model}", nothing)
        .path("/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2024-11-30")
        .status(400),
    get("/documentintelligence/documentModels/{document_model}/analyzeResults/{result}").path(RESULT).status(404),
    get("/documentintelligence/documentModels/{document_model}/analyzeResults/{result}/pdf").path(RESULT).status(404),
    // The model is there, and reads no documents.
    put("/process", nothing).status(400),
    get("/openapi.json"),
    get("/v2"),
    get("/v2/models/stats"),
    get("/v2/models/{model}"),
    get("/v2/models/{model}/ready"),
    get("/v2/models/{model}/config"),
    get("/v2/models/{model}/stats"),
    post("/v2/models/{model}/infer", ask),
    get("/v2/models/{model}/drift"),
    // It has no window yet.
    post("/v2/models/{model}/drift/accept", nothing).status(409),
    get("/v2/models/{model}/versions/{version}"),
    get("/v2/models/{model}/versions/{version}/ready"),
    get("/v2/models/{model}/versions/{version}/config"),
    get("/v2/models/{model}/versions/{version}/stats"),
    post("/v2/models/{model}/versions/{version}/infer", ask),
    post("/v2/repository/index", nothing),
    post("/v2/repository/models/{model}/unload", nothing),
    post("/v2/repository/models/{model}/load", nothing),
    post("/get-online-features", read),
    post("/push", push),
    post("/write-to-online-store", write),
    post("/materialize", nothing).status(501),
    post("/materialize-incremental", nothing).status(501),
    get("/feature-views"),
    get("/feature-views/{feature_view}").path("/feature-views/driver_stats"),
    get("/feature-services"),
    get("/feature-services/{feature_service}").path("/feature-services/driver_activity"),
    get("/entities"),
    get("/features/status"),
    get("/features/backup"),
    // The view is not watched.
    get("/features/unusual").path("/features/unusual?view=driver_stats").status(404),
    get("/features/forecast").path("/features/forecast?feature=driver_stats:trips&driver_id=1").status(404),
    post("/features/unusual/normal", normal).status(404),
    // A body that is no backup is refused.
    post("/features/restore", nothing).status(422),
    // Erasing an unknown driver succeeds.
    post("/features/disclose", || json!({"entity": {"driver_id": 404}})),
    post("/features/erase", || json!({"entity": {"driver_id": 404}})),
    post("/features/snapshot", nothing),
    post("/features/compact", nothing),
    // No platform manages the box.
    get("/updates").status(409),
    post("/updates/check", nothing).status(409),
    post("/updates/trust/reset", nothing).status(409),
    post("/updates/{kind}/{name}/{order}", nothing).status(409).path("/updates/models/{model}/rollback"),
    get("/catalogue"),
    // No catalogue and no uploads are configured.
    post("/catalogue/refresh", nothing).status(409),
    post("/catalogue/models/{name}/add", nothing).status(409).path("/catalogue/models/x/add"),
    post("/catalogue/models/{name}/remove", nothing).status(404).path("/catalogue/models/x/remove"),
    post("/catalogue/models/{name}/upload", nothing).status(409).path("/catalogue/models/x/upload"),
    get("/audit/status"),
    get("/report").path("/report?month=2026-01"),
    // No erasure has this statement.
    get("/audit/erasures/{statement}").status(404).path("/audit/erasures/00"),
    get("/audit/logs/{generation}/checkpoint").path("/audit/logs/1/checkpoint"),
    // A log this young does not have this tile.
    get("/audit/logs/{generation}/tile/{*path}").status(404).path("/audit/logs/1/tile/entries/999"),
    get("/"),
    get("/console/{file}").path("/console/app.js"),
    get("/access"),
    get("/roles"),
    get("/models"),
    get("/capacity"),
    get("/figures"),
    // It ends at once.
    get("/figures/live").path("/figures/live?events=0"),
    get("/figures/series"),
    get("/figures/history"),
    get("/findings"),
    get("/unusual"),
    // It is not watched.
    post("/unusual/{series}/{column}/normal", nothing).status(404).path("/unusual/box/nothing/normal"),
    get("/keys"),
    // No name.
    post("/keys", nothing).status(400),
    post("/keys/{key}/revoke", nothing).status(404).path("/keys/nobody/revoke"),
    // No code and no key.
    post("/session", nothing).status(400),
    // This caller did not sign in.
    post("/session/end", nothing).status(409),
    // No name.
    post("/session/codes", nothing).status(400),
    get("/sessions"),
    post("/sessions/{session}/end", nothing).status(404).path("/sessions/00000000/end"),
    get("/egress"),
    get("/alerts"),
    get("/inboxes"),
    get("/accounts"),
    get("/objectives"),
    get("/jobs"),
    post("/jobs", nothing).status(400),
    get("/jobs/{id}").status(404).path("/jobs/20261201T111438123Z-1f3a9c2e"),
    post("/jobs/{id}/remove", nothing).status(404).path("/jobs/20261201T111438123Z-1f3a9c2e/remove"),
    get("/jobs/{id}/result").status(404).path("/jobs/20261201T111438123Z-1f3a9c2e/result"),
    // No alert has this name.
    post("/alerts/{alert}/test", nothing).status(404).path("/alerts/shop/test"),
    get("/metrics"),
    get("/cameras"),
    get("/cameras/events"),
    // The box has no camera.
    get("/cameras/{camera}/picture").status(404).path("/cameras/yard/picture"),
];

/// The callers that may use a route.
pub struct Row {
    /// Set where it needs no role.
    pub is_public: bool,
    pub roles: BTreeSet<Role>,
    /// The part of it for a caller that is limited to single models: a `Scope`, in lower case.
    pub scope: &'static str,
}

/// The data file.
pub struct Table {
    /// By method and path, in the order of the file.
    pub rows: Vec<((&'static str, &'static str), Row)>,
    /// The roles of callers without a credential, by the section of the configuration that has them.
    pub defaults: BTreeMap<&'static str, Vec<Role>>,
}

impl Table {
    /// Reads it.
    pub fn read() -> Self {
        let mut lines = include_str!("../../docs/access.tsv").lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let head = lines.next().unwrap();
        let [_, _, "no key", ref named @ .., "scope"] = head[..] else { panic!("{head:?}") };
        let named: Vec<Role> = named.iter().map(|name| name.parse().unwrap()).collect();
        assert_eq!(named, Role::ALL, "every role has a column");

        let mut table = Self { rows: Vec::new(), defaults: BTreeMap::new() };
        for line in lines {
            let [method, path, ref cells @ .., scope] = line[..] else { panic!("{line:?}") };
            let may = |cell: &&str| match *cell {
                "yes" => true,
                "no" => false,
                _ => panic!("{line:?}"),
            };
            let cells: Vec<bool> = cells.iter().map(may).collect();
            assert_eq!(cells.len(), 1 + named.len(), "{line:?}");
            let roles = named.iter().zip(&cells[1..]).filter(|(_, may)| **may).map(|(role, _)| *role);
            if method == "default" {
                table.defaults.insert(path, roles.collect());
            } else {
                table.rows.push(((method, path), Row { is_public: cells[0], roles: roles.collect(), scope }));
            }
        }
        table
    }

    /// The row of a route.
    pub fn row(&self, method: &str, path: &str) -> &Row {
        let row = self.rows.iter().find(|(route, _)| *route == (method, path));
        &row.unwrap_or_else(|| panic!("docs/access.tsv has no row for {method} {path}")).1
    }

    /// Returns `true` if a caller with these roles may make this call.
    pub fn lets(&self, roles: &[Role], call: &Call) -> bool {
        let row = self.row(call.method, call.route);
        row.is_public || roles.iter().any(|role| row.roles.contains(role))
    }

    /// The tables of docs/access.md.
    pub fn printed(&self) -> String {
        let mut text = "| role | may |\n| --- | --- |\n".to_owned();
        for role in Role::ALL {
            let _ = writeln!(text, "| `{role}` | {} |", role.may());
        }
        text.push_str("\n| calls | roles | a key for single models |\n| --- | --- | --- |\n");
        let mut groups: Vec<(&Row, Vec<String>)> = Vec::new();
        for ((method, path), row) in &self.rows {
            let call = format!("`{method} {path}`");
            let is_same = |group: &&mut (&Row, _)| {
                let (other, _) = group;
                (other.is_public, &other.roles, limit(other.scope)) == (row.is_public, &row.roles, limit(row.scope))
            };
            match groups.iter_mut().find(is_same) {
                Some((_, calls)) => calls.push(call),
                None => groups.push((row, vec![call])),
            }
        }
        for (row, calls) in groups {
            let roles: Vec<_> = row.roles.iter().map(ToString::to_string).collect();
            let roles = match roles.len() {
                _ if row.is_public => "no key needed".to_owned(),
                count if count == Role::ALL.len() => "every role".to_owned(),
                _ => roles.join(", "),
            };
            let _ = writeln!(text, "| {} | {roles} | {} |", calls.join(", "), limit(row.scope));
        }
        text
    }
}

/// The part of a route for a caller that is limited to single models.
fn limit(scope: &str) -> &'static str {
    match scope {
        "model" | "subject" | "configured" => "for its models",
        "listed" => "lists its models",
        "values" => "for its feature views",
        "other" => "yes",
        "box" => "no",
        _ => panic!("{scope} is no scope"),
    }
}
