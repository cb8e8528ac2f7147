//! The README's section "Who may do what", read as the expectation of tests, and every route by what that section calls
//! it.

use std::collections::{BTreeMap, BTreeSet};

use ledge::identity::access::Role;
use serde_json::{Value, json};

/// The duty that a route serves, in the README's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    /// The signs of life, the description and the files of the console: for everybody.
    Anybody,
    Models,
    Statistics,
    Metrics,
    Declared,
    States,
    Figures,
    Cameras,
    Egress,
    Ask,
    Read,
    Push,
    Load,
    Add,
    Catalogue,
    Upload,
    Orders,
    Maintain,
    Alerts,
    Log,
    Backup,
    Trust,
    Pictures,
    Keys,
}

use Duty::{
    Add, Alerts, Anybody, Ask, Backup, Cameras, Catalogue, Declared, Egress, Figures, Keys, Load, Log, Maintain,
    Metrics, Models, Orders, Pictures, Push, Read, States, Statistics, Trust, Upload,
};

/// The README's words and what they stand for. A table with other words fails: then they are to be understood here.
const WORDS: &[(&str, &[Duty])] = &[
    ("see models, their index, configuration and statistics", &[Models, Statistics]),
    ("`/metrics`", &[Metrics]),
    ("what is declared of features", &[Declared]),
    ("the state of features, updates, alerts and the audit log", &[States]),
    ("the figures and findings of the console", &[Figures]),
    ("what cameras count", &[Cameras]),
    ("what left the box", &[Egress]),
    ("ask models", &[Ask]),
    ("see those models", &[Models]),
    ("read features", &[Read]),
    ("push features", &[Push]),
    ("read them", &[Read]),
    ("see what is declared", &[Declared]),
    ("load and unload models", &[Load]),
    ("add models of the catalogue", &[Add]),
    ("the catalogue", &[Catalogue]),
    ("upload and remove models", &[Upload]),
    ("check for, pin, roll back and cancel updates", &[Orders]),
    ("compact and snapshot the feature store", &[Maintain]),
    ("try alerts", &[Alerts]),
    ("read the audit log", &[Log]),
    ("back up, restore and erase features", &[Backup]),
    ("reset what is trusted", &[Trust]),
    ("see the pictures of cameras", &[Pictures]),
    ("see, create and revoke API keys", &[Keys]),
];

/// The calls that a caller for one model is refused, by docs/access.md, "Keys for single models and feature views".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The model in the path.
    Model,
    /// Values of feature views, of which such a caller has none.
    Values,
    Box,
    Other,
}

/// A route, and a request that it answers to a caller with permission.
pub struct Call {
    pub method: &'static str,
    /// As in the router's table.
    pub route: &'static str,
    /// One of them is enough.
    pub duties: &'static [Duty],
    pub about: About,
    /// The status for a caller with permission.
    pub status: u16,
    /// The path of the request, where the model is `{model}`.
    pub path: &'static str,
    pub body: fn() -> Value,
}

const fn get(route: &'static str, duties: &'static [Duty]) -> Call {
    Call { method: "GET", route, duties, about: About::Other, status: 200, path: route, body: || Value::Null }
}

const fn post(route: &'static str, duties: &'static [Duty], body: fn() -> Value) -> Call {
    Call { method: "POST", body, ..get(route, duties) }
}

impl Call {
    const fn model(self) -> Self {
        Self { about: About::Model, ..self }
    }

    const fn values(self) -> Self {
        Self { about: About::Values, ..self }
    }

    const fn whole_box(self) -> Self {
        Self { about: About::Box, ..self }
    }

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

/// Every route. The one that unloads comes before the one that loads.
pub const CALLS: &[Call] = &[
    get("/v2/health/live", &[Anybody]),
    get("/v2/health/ready", &[Anybody]),
    get("/health", &[Anybody]),
    get("/v1/status/ping", &[Anybody]),
    // No form.
    post("/v1/vision/detection", &[Ask], nothing).status(400),
    post("/v1/vision/face", &[Ask], nothing).status(400),
    post("/v1/vision/scene", &[Ask], nothing).status(400),
    post("/v1/vision/custom/list", &[Models], nothing),
    post("/v1/vision/custom/{model}", &[Ask], nothing).status(400).model(),
    // No body.
    post("/v1/embeddings", &[Ask], nothing).status(400),
    get("/v1/models", &[Models]),
    // The model is there, and embeds no texts.
    get("/v1/models/{model}", &[Models]).status(404).model(),
    get("/openapi.json", &[Anybody]),
    get("/v2", &[Models]),
    get("/v2/models/stats", &[Statistics]),
    get("/v2/models/{model}", &[Models]).model(),
    get("/v2/models/{model}/ready", &[Models]).model(),
    get("/v2/models/{model}/config", &[Models]).model(),
    get("/v2/models/{model}/stats", &[Statistics]).model(),
    post("/v2/models/{model}/infer", &[Ask], ask).model(),
    get("/v2/models/{model}/versions/{version}", &[Models]).model(),
    get("/v2/models/{model}/versions/{version}/ready", &[Models]).model(),
    get("/v2/models/{model}/versions/{version}/config", &[Models]).model(),
    get("/v2/models/{model}/versions/{version}/stats", &[Statistics]).model(),
    post("/v2/models/{model}/versions/{version}/infer", &[Ask], ask).model(),
    post("/v2/repository/index", &[Statistics], nothing),
    post("/v2/repository/models/{model}/unload", &[Load], nothing).model(),
    post("/v2/repository/models/{model}/load", &[Load], nothing).model(),
    post("/get-online-features", &[Read], read).values(),
    post("/push", &[Push], push).values(),
    post("/write-to-online-store", &[Push], write).values(),
    post("/materialize", &[Push], nothing).status(501),
    post("/materialize-incremental", &[Push], nothing).status(501),
    get("/feature-views", &[Declared]),
    get("/feature-views/{feature_view}", &[Declared]).path("/feature-views/driver_stats"),
    get("/feature-services", &[Declared]),
    get("/feature-services/{feature_service}", &[Declared]).path("/feature-services/driver_activity"),
    get("/entities", &[Declared]),
    get("/features/status", &[States]),
    get("/features/backup", &[Backup]).whole_box(),
    // A body that is no backup is refused.
    post("/features/restore", &[Backup], nothing).whole_box().status(422),
    // Erasing an unknown driver succeeds.
    post("/features/erase", &[Backup], || json!({"entity": {"driver_id": 404}})).whole_box(),
    post("/features/snapshot", &[Maintain], nothing).whole_box(),
    post("/features/compact", &[Maintain], nothing).whole_box(),
    // No platform manages the box.
    get("/updates", &[States]).status(409),
    post("/updates/check", &[Orders], nothing).whole_box().status(409),
    post("/updates/trust/reset", &[Trust], nothing).whole_box().status(409),
    post("/updates/{kind}/{name}/{order}", &[Orders], nothing)
        .model()
        .status(409)
        .path("/updates/models/{model}/rollback"),
    get("/catalogue", &[Catalogue]).whole_box(),
    // No catalogue and no uploads are configured.
    post("/catalogue/refresh", &[Add], nothing).whole_box().status(409),
    post("/catalogue/models/{name}/add", &[Add], nothing).whole_box().status(409).path("/catalogue/models/x/add"),
    post("/catalogue/models/{name}/remove", &[Upload], nothing)
        .whole_box()
        .status(404)
        .path("/catalogue/models/x/remove"),
    post("/catalogue/models/{name}/upload", &[Upload], nothing)
        .whole_box()
        .status(409)
        .path("/catalogue/models/x/upload"),
    get("/audit/status", &[States]),
    get("/audit/logs/{generation}/checkpoint", &[Log]).whole_box().path("/audit/logs/1/checkpoint"),
    // A log this young has no such tile.
    get("/audit/logs/{generation}/tile/{*path}", &[Log]).whole_box().status(404).path("/audit/logs/1/tile/entries/999"),
    get("/", &[Anybody]),
    get("/console/{file}", &[Anybody]).path("/console/app.js"),
    // For every role: each has one of these.
    get("/access", &[Statistics, Ask, Push]),
    get("/roles", &[Statistics, Ask, Push]),
    get("/models", &[Statistics]),
    get("/figures", &[Figures]).whole_box(),
    // It ends at once.
    get("/figures/live", &[Figures]).whole_box().path("/figures/live?events=0"),
    get("/findings", &[Figures]).whole_box(),
    get("/keys", &[Keys]).whole_box(),
    // No name.
    post("/keys", &[Keys], nothing).whole_box().status(400),
    post("/keys/{key}/revoke", &[Keys], nothing).whole_box().status(404).path("/keys/nobody/revoke"),
    get("/egress", &[Egress]).whole_box(),
    get("/alerts", &[States]).whole_box(),
    // There is none of this name.
    post("/alerts/{alert}/test", &[Alerts], nothing).whole_box().status(404).path("/alerts/shop/test"),
    get("/metrics", &[Metrics]),
    get("/cameras", &[Cameras]).whole_box(),
    get("/cameras/events", &[Cameras]).whole_box(),
    // The box has no camera.
    get("/cameras/{camera}/picture", &[Pictures]).whole_box().status(404).path("/cameras/yard/picture"),
];

/// The README's table of roles.
pub struct Table {
    roles: BTreeMap<Role, BTreeSet<Duty>>,
    /// The words about each role.
    pub words: BTreeMap<Role, String>,
    /// The paths that need no role.
    pub public: Vec<String>,
    /// The roles of a caller without a key or certificate, over loopback and on the socket.
    pub unpresented: Vec<Role>,
    pub mqtt: Vec<Role>,
}

impl Table {
    /// Reads it.
    pub fn read() -> Self {
        let readme = include_str!("../../README.md");
        let (_, section) = readme.split_once("\n## Who may do what\n").unwrap();
        let section = section.split_once("\n## ").unwrap().0;
        let (before, rest) = section.split_once("| Role | May |\n| --- | --- |\n").unwrap();
        let (mut roles, mut words) = (BTreeMap::<Role, BTreeSet<Duty>>::new(), BTreeMap::new());
        for line in rest.lines().take_while(|line| line.starts_with('|')) {
            let [_, name, may, _] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let duties = understood(may, roles.get(&Role::Viewer));
            let role = name.trim().trim_matches('`').parse().unwrap();
            assert!(roles.insert(role, duties).is_none(), "{line}");
            words.insert(role, may.trim().to_owned());
        }
        assert_eq!(roles.len(), Role::ALL.len(), "every role is in the README's table");
        let quoted = before.split('`').skip(1).step_by(2);
        let public = quoted.filter(|text| text.starts_with('/')).map(str::to_owned).collect();
        let flat = section.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            roles,
            words,
            public,
            unpresented: listed(&flat, "both are ", " until you say otherwise"),
            mqtt: listed(&flat, "the roles of `[access.mqtt]` (", ")"),
        }
    }

    /// Returns `true` if a caller with these roles has this duty.
    pub fn has(&self, roles: &[Role], duty: Duty) -> bool {
        roles.iter().any(|role| self.roles[role].contains(&duty))
    }

    /// Returns `true` if a caller with these roles may make this call.
    pub fn lets(&self, roles: &[Role], call: &Call) -> bool {
        self.public.iter().any(|path| path == call.route) || call.duties.iter().any(|duty| self.has(roles, *duty))
    }
}

/// Between two texts: `a, b and c`.
fn listed(text: &str, from: &str, to: &str) -> Vec<Role> {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("the README has no {from:?}"));
    let words = rest.split_once(to).unwrap().0.replace(" and ", ", ");
    words.split(", ").map(|word| word.parse().unwrap()).collect()
}

/// The duties in a cell. Every word counts.
fn understood(cell: &str, viewer: Option<&BTreeSet<Duty>>) -> BTreeSet<Duty> {
    let (mut rest, mut duties) = (cell.to_owned(), BTreeSet::new());
    let mut take = |words: &str, meant: &mut dyn Iterator<Item = Duty>| {
        if rest.contains(words) {
            rest = rest.replace(words, " ");
            duties.extend(meant);
        }
    };
    for (words, meant) in WORDS {
        take(words, &mut meant.iter().copied());
    }
    take("what a viewer may", &mut viewer.into_iter().flatten().copied());
    take("everything", &mut CALLS.iter().flat_map(|call| call.duties).copied());
    let mut unknown = rest.split(|c: char| c.is_whitespace() || ",;:".contains(c));
    let unknown: Vec<_> = unknown.by_ref().filter(|word| !["", "and", "also"].contains(word)).collect();
    assert!(
        unknown.is_empty(),
        "the README's table has words that this test does not understand: {unknown:?} in {cell}"
    );
    duties
}
