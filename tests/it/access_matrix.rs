//! Every route for every role, scope and way in, and without any role: exactly the calls of `docs/access.tsv`
//! succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ledge::identity::access::{Permission, Role};
use ledge::identity::access_config::AccessConfig;
use ledge::part::route::{Route, RouteRule};
use ledge::{alerts, audit, cameras, capacity, console, features, grpc, history, http, inbox, jobs, updates};
use serde_json::{Value, json};

use crate::access_table::{CALLS, Call, Table};
use crate::client::{Client, Response};
use crate::daemon::TestRoot;
use crate::features::VIEWS;

/// A user of this machine that `access.users` does not list.
const STRANGER: u32 = 60_100;

/// The models of these boxes: what keys with a scope are for, and another.
const MODELS: [&str; 2] = ["add_sub", "other"];

/// Makes a key by the command line.
pub fn key(root: &TestRoot, arguments: &[&str]) -> String {
    let made = root.command(&[&["keys", "create"], arguments].concat()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim_end().to_owned()
}

/// A box with something behind each route.
fn root() -> TestRoot {
    let root = TestRoot::closed().set(&format!("documents.model=\"{}\"", MODELS[0]));
    root.set("vision.scene=\"other\"").models(&MODELS[..1]).model_as(MODELS[0], MODELS[1]).views(VIEWS)
}

/// The user that `access.users` lists for a role.
fn user(role: Role) -> u32 {
    60_000 + role as u32
}

/// A connection over the Unix socket by another user, which only root can become.
pub fn client_of_user(socket: &Path, uid: u32) -> Client {
    let socket = socket.to_owned();
    // Only for one thread: the kernel has credentials for each thread, and the socket keeps those of the one that
    // connects.
    let become_user = move || {
        rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(uid)).unwrap();
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
        Client::unix(&socket)
    };
    std::thread::spawn(become_user).join().unwrap()
}

/// Returns `true` if this process may become other users; a test reports with [`not_tried`] the cases it skips.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        not_tried("what other users of this machine may do", "run `make test` as root");
    }
    is_root
}

/// Reports what this machine cannot try and how it could: a failure where `CI=true`, as everything has to be tried
/// there.
#[track_caller]
pub fn not_tried(what: &str, how: &str) {
    let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!is_ci, "{what} is not tried here: {how}");
    eprintln!("{what} is not tried here: {how}");
}

/// Lets other users reach the socket.
pub fn open_folder(root: &TestRoot) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(root.folder.path(), mode).unwrap();
}

/// A caller.
struct Asker {
    name: String,
    client: Client,
    key: Option<String>,
    roles: Vec<Role>,
    /// Only for this model.
    model: Option<&'static str>,
    /// The status of a refusal.
    refused: u16,
}

impl Asker {
    fn send(&mut self, call: &Call, model: &str, end: &str) -> Response {
        let path = call.path.replace("{model}", model).replace("{version}", "1");
        let path = match path.split_once('?') {
            Some((path, query)) => format!("{path}{end}?{query}"),
            None => path + end,
        };
        let bearer = self.key.as_ref().map(|key| format!("Bearer {key}"));
        let authorization = bearer.iter().map(|bearer| ("authorization", bearer.as_str()));
        let headers: Vec<_> = [("content-type", "application/json")].into_iter().chain(authorization).collect();
        let body = (call.body)();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.client.request(call.method, &path, &headers, body.as_bytes())
    }

    /// The status that the table wants.
    fn expected(&self, table: &Table, call: &Call, model: &str) -> u16 {
        let row = table.row(call.method, call.route);
        let is_out_of_scope = self.model.is_some_and(|own| match row.scope {
            "model" | "subject" => own != model,
            "values" | "box" => true,
            _ => false,
        });
        let is_answered = table.lets(&self.roles, call) && (row.is_public || !is_out_of_scope);
        if is_answered { call.status } else { self.refused }
    }
}

/// Sends every call, and gives what differs from the table, and how many were sent.
fn differences(table: &Table, asker: &mut Asker) -> (Vec<String>, usize) {
    let (mut found, mut sent) = (Vec::new(), 0);
    for call in CALLS {
        let models = if call.path.contains("{model}") { &MODELS[..] } else { &MODELS[..1] };
        // A slash at the end is the same route. Behind a wildcard it is a part of what that stands for.
        let ends = if call.route.contains("{*") { &[""][..] } else { &["", "/"] };
        for (model, end) in models.iter().flat_map(|model| ends.iter().map(move |end| (model, end))) {
            let (expected, answer) = (asker.expected(table, call, model), asker.send(call, model, end));
            sent += 1;
            let (name, method, path) = (&asker.name, call.method, format!("{}{end}", call.path));
            if answer.status != expected {
                let told = String::from_utf8_lossy(&answer.body).chars().take(200).collect::<String>();
                found.push(format!("{name}: {method} {path} ({model}): {} and not {expected}: {told}", answer.status));
            }
            let challenged = answer.header("www-authenticate").is_some();
            if challenged != (answer.status == 401) {
                found.push(format!("{name}: {method} {path}: a challenge ({challenged}) with {}", answer.status));
            }
        }
    }
    (found, sent)
}

/// The rule of every route: a part with routes adds its table here, its rows to `docs/access.tsv`, and its requests to
/// `access_table.rs`.
pub fn routes() -> Vec<RouteRule> {
    fn rules<S>(table: &[Route<S>]) -> impl Iterator<Item = RouteRule> {
        table.iter().map(|route| route.rule)
    }
    let parts = rules(features::http::ROUTES).chain(rules(updates::http::ROUTES)).chain(rules(audit::http::ROUTES));
    let console =
        rules(console::http::ROUTES).chain(rules(console::keys::ROUTES)).chain(rules(console::sign_in::ROUTES));
    let parts = parts.chain(rules(updates::catalogue::ROUTES)).chain(rules(cameras::http::ROUTES)).chain(console);
    let parts = parts.chain(rules(alerts::http::ROUTES)).chain(rules(inbox::http::ROUTES));
    let parts = parts.chain(rules(history::http::ROUTES));
    let parts = parts.chain(rules(ledge::report::http::ROUTES));
    let parts = parts.chain(rules(ledge::drift::http::ROUTES)).chain(rules(ledge::accounts::http::ROUTES));
    let parts = parts.chain(rules(jobs::http::ROUTES));
    let parts = parts.chain(rules(capacity::http::ROUTES));
    rules(http::routes::ROUTES).chain(parts).collect()
}

/// The rules of gRPC. `grpc.rs` calls its methods.
fn grpc_methods() -> Vec<RouteRule> {
    grpc::part::ROUTES.iter().map(|route| route.rule).collect()
}

#[test]
fn what_gets_through_is_what_the_table_says() {
    let table = Table::read();
    let mut root = root().set("access.loopback=[]").set("access.socket=[]").set("http.socket_mode=\"0666\"");
    let users = Role::ALL.map(|role| format!("{{user=\"{}\", roles=[\"{role}\"]}}", user(role)));
    root = root.set(&format!("access.users=[{}]", users.join(", ")));
    open_folder(&root);
    let named = |role: Role, scoped: &[&str]| {
        let name = format!("{role}{}", scoped.join(""));
        key(&root, &[&[name.as_str(), "--role", role.as_str()], scoped].concat())
    };
    let (keys, scoped) =
        (Role::ALL.map(|role| named(role, &[])), Role::ALL.map(|role| named(role, &["--model", MODELS[0]])));
    let daemon = root.start();
    let socket = daemon.root.folder.path().join("ledge.sock");
    let asker = |name: String, client, roles: &[Role], refused| Asker {
        name,
        client,
        key: None,
        roles: roles.to_vec(),
        model: None,
        refused,
    };
    let mut askers = vec![asker("nobody".into(), daemon.client(), &[], 401)];
    askers.push(asker("its own user".into(), daemon.unix_client(), &[Role::Admin], 403));
    if is_root() {
        askers.push(asker("a stranger on the socket".into(), client_of_user(&socket, STRANGER), &[], 401));
        for role in Role::ALL {
            let client = client_of_user(&socket, user(role));
            askers.push(asker(format!("a user for {role}"), client, &[role], 403));
        }
    }
    for (role, (key, scoped)) in Role::ALL.into_iter().zip(keys.into_iter().zip(scoped)) {
        let all = asker(format!("a key for {role}"), daemon.client(), &[role], 403);
        askers.push(Asker { key: Some(key), ..all });
        let one = asker(format!("a key for {role} with one model"), daemon.client(), &[role], 403);
        askers.push(Asker { key: Some(scoped), model: Some(MODELS[0]), ..one });
    }
    let (mut found, mut sent) = (Vec::new(), 0);
    for asker in &mut askers {
        let (differences, count) = differences(&table, asker);
        found.extend(differences);
        sent += count;
    }
    assert_eq!(found, [""; 0], "{} of {sent}", found.len());
    assert!(sent >= askers.len() * routes().len());
    eprintln!("{sent} requests of {} callers", askers.len());
}

#[test]
fn who_presents_nothing_has_the_roles_of_its_way_in() {
    let table = Table::read();
    let root = root().set("http.socket_mode=\"0666\"");
    open_folder(&root);
    let daemon = root.start();
    let socket = daemon.root.folder.path().join("ledge.sock");
    let mut clients = vec![("access.loopback", daemon.client())];
    if is_root() {
        clients.push(("access.socket", client_of_user(&socket, STRANGER)));
    }
    for (name, client) in clients {
        let roles = table.defaults[name].clone();
        let mut asker = Asker { name: name.into(), client, key: None, roles, model: None, refused: 401 };
        assert_eq!(differences(&table, &mut asker).0, [""; 0]);
    }
}

#[test]
fn every_route_is_in_the_table_the_description_and_this_test() {
    let table = Table::read();
    let calls: BTreeSet<_> = CALLS.iter().map(|call| (call.method.to_owned(), call.route.to_owned())).collect();
    let over_grpc: BTreeSet<_> = grpc_methods().iter().map(|rule| rule.path).collect();
    let listed = table.rows.iter().filter(|((_, path), _)| !over_grpc.contains(path));
    let listed = listed.map(|((method, path), _)| ((*method).to_owned(), (*path).to_owned()));
    assert_eq!(calls, listed.collect(), "each row of docs/access.tsv needs a request in tests/it/access_table.rs");
    for rule in routes().into_iter().chain(grpc_methods()) {
        assert_eq!(rule.mistake(), None, "{} {}", rule.method, rule.path);
        let row = table.row(rule.method, rule.path);
        let scope = format!("{:?}", rule.scope).to_lowercase();
        assert_eq!((rule.is_public(), scope.as_str()), (row.is_public, row.scope), "{} {}", rule.method, rule.path);
        assert_eq!(rule.roles().collect::<BTreeSet<_>>(), row.roles, "{} {}", rule.method, rule.path);
    }
    let routes: BTreeSet<_> = routes().iter().map(|rule| (rule.method.to_owned(), rule.path.to_owned())).collect();
    assert_eq!(calls, routes, "each row of docs/access.tsv is a route");
    let AccessConfig { loopback, socket, mqtt, .. } = AccessConfig::default();
    let defaults = [("access.loopback", loopback), ("access.mqtt", mqtt.roles), ("access.socket", socket)];
    assert_eq!(table.defaults, defaults.into());
    let daemon = TestRoot::closed().start();
    let described = daemon.client().get("/openapi.json").json();
    let mut needs = BTreeMap::new();
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            // axum marks a part that takes slashes.
            let path = path.replace("/tile/{path}", "/tile/{*path}");
            needs.insert((method.to_uppercase(), path), operation["x-ledge-permission"].clone());
        }
    }
    assert_eq!(needs.keys().cloned().collect::<BTreeSet<_>>(), routes);
    // The OpenAPI description and the table agree on the roles that a call needs.
    for call in CALLS {
        let need = &needs[&(call.method.to_owned(), call.route.to_owned())];
        for role in Role::ALL {
            let has = |need: &Value| role.permissions().iter().any(|one: &Permission| json!(one.as_str()) == *need);
            let described = need.as_array().unwrap().iter().any(has);
            assert_eq!(described, table.lets(&[role], call), "{role}: {} {} needs {need}", call.method, call.route);
        }
    }
}

#[test]
fn the_tables_of_the_page_about_access_are_those_of_the_data_file() {
    let printed = Table::read().printed();
    let page = include_str!("../../docs/access.md");
    assert!(page.contains(&printed), "replace the tables below \"Roles\" in docs/access.md by these:\n\n{printed}");
}

#[test]
fn no_other_method_or_spelling_is_a_way_around() {
    let table = Table::read();
    let root = root().set("access.loopback=[]");
    let daemon = root.start();
    let mut client = daemon.client();
    for call in CALLS.iter().filter(|call| !table.lets(&[], call)) {
        let path = call.path.replace("{model}", MODELS[0]).replace("{version}", "1");
        let mut status = |method: &str, path: &str| client.request(method, path, &[], b"").status;
        if call.method == "GET" {
            assert_eq!(status("HEAD", &path), 401, "HEAD {path}");
        }
        for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "get", "post"] {
            let status = status(method, &path);
            assert!([400, 401, 405].contains(&status), "{method} {path}: {status}");
        }
        let spellings = [
            format!("{path}?api_key=x"),
            format!("{path}//"),
            format!("/{path}"),
            format!("/v2/health/live/..{path}"),
            format!("/v2/health/live/%2e%2e/%2e%2e{path}"),
            path.to_uppercase(),
            path.replacen('/', "/%2f", 1),
            format!("{path};/v2/health/live"),
            format!("{path}%00"),
        ];
        if !call.route.contains("{*") && !path.contains('?') {
            assert_eq!(status(call.method, &format!("{path}/")), 401, "{} {path}/", call.method);
        }
        for spelled in spellings {
            let status = status(call.method, &spelled);
            assert!([400, 401, 404, 405].contains(&status), "{} {spelled}: {status}", call.method);
        }
        // Headers by which proxies accept another path or method.
        for name in ["x-original-url", "x-rewrite-url", "x-http-method-override", "x-forwarded-for", "forwarded"] {
            let headers = [(name, "/v2/health/live"), ("x-real-ip", "127.0.0.1"), ("x-forwarded-user", "root")];
            assert_eq!(client.request(call.method, &path, &headers, b"").status, 401, "{name} {path}");
        }
    }
}

#[test]
fn what_is_refused_is_neither_read_nor_done() {
    let root = root().set("access.loopback=[]");
    let viewer = key(&root, &["viewer", "--role", "viewer"]);
    let daemon = root.start();
    let mut admin = daemon.unix_client();
    assert_eq!(admin.post_json("/v2/repository/models/other/unload", &json!({})).status, 200);
    let askers = [(None, 401), (Some(format!("Bearer {viewer}")), 403), (Some("Bearer ledge_wrong".to_owned()), 401)];
    for (bearer, refused) in &askers {
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let mut client = daemon.client();
        // A viewer may see the models, and everybody may sign in.
        let open = ["/v2/repository/index", "/v1/vision/custom/list", "/session", "/session/end"];
        let is_read = |call: &Call| open.contains(&call.route);
        for call in CALLS.iter().filter(|call| call.method == "POST" && !is_read(call)) {
            let path = call.path.replace("{model}", "other").replace("{version}", "1");
            let body = (call.body)().to_string();
            for body in [body.as_bytes(), b"{not JSON", b"\xff\xfe"] {
                let status = client.request("POST", &path, &headers, body).status;
                // Too many wrong keys are another reason, and no better.
                assert!(status == *refused || (status == 429 && *refused == 401), "{path}: {status}");
            }
        }
    }
    let index = admin.post_json("/v2/repository/index", &json!({})).json();
    let other = index.as_array().unwrap().iter().find(|model| model["name"] == "other").unwrap();
    assert_eq!(other["state"], "UNAVAILABLE", "{index}");
    let read = json!({"features": ["driver_stats:trips"], "entities": {"driver_id": [1, 2]}});
    let read = admin.post_json("/get-online-features", &read).json();
    assert_eq!(read["results"][1]["statuses"], json!(["NOT_FOUND", "NOT_FOUND"]), "{read}");
    let statistics = admin.get("/v2/models/add_sub/stats").json();
    let inferred = &statistics["model_stats"][0]["inference_stats"];
    assert_eq!([&inferred["success"]["count"], &inferred["fail"]["count"]], [0, 0], "{statistics}");
    // A body that never comes is not waited for.
    let mut client = daemon.client();
    client.send(b"POST /v2/models/add_sub/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n");
    assert_eq!(client.receive().status, 401);
    let mut client = daemon.client();
    client.send(b"POST /push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(client.receive_interim(), 401, "nobody is invited to send a body that is refused");
}

#[test]
fn a_web_page_may_not_what_this_machine_may() {
    let table = Table::read();
    let root = root().set("access.loopback=[\"admin\"]").set("http.allowed_hosts=[\"box.example\"]");
    let viewer = format!("x-api-key: {}", key(&root, &["viewer", "--role", "viewer"]));
    let daemon = root.start();
    let status = |mut client: Client, path: &str, head: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n").as_bytes());
        client.receive().status
    };
    let heads = [
        "host: localhost\r\norigin: https://far.example",
        "host: localhost\r\norigin: null",
        "host: 127.0.0.1\r\nsec-fetch-site: cross-site",
        "host: localhost:8000\r\norigin: http://localhost:3000\r\nsec-fetch-site: same-site",
        "host: localhost\r\norigin: https://localhost",
        "host: far.example\r\norigin: http://far.example\r\nsec-fetch-site: same-origin",
        "host: far.example",
        "host: box.example.far.example:80",
    ];
    for head in heads {
        for call in CALLS.iter().filter(|call| call.method == "GET" && call.status == 200) {
            let path = call.path.replace("{model}", MODELS[0]).replace("{version}", "1");
            let expected = if table.lets(&[], call) { 200 } else { 401 };
            assert_eq!(status(daemon.client(), &path, head), expected, "{path} {head}");
        }
        // A page has no key and reaches no Unix socket.
        assert_eq!(status(daemon.client(), "/v2", &format!("{head}\r\n{viewer}")), 200, "{head}");
        assert_eq!(status(daemon.unix_client(), "/v2", head), 200, "{head}");
    }
    for head in [
        "host: localhost:8000",
        "host: [::1]:8000",
        "host: box.example",
        "host: localhost\r\nsec-fetch-site: none",
        // The console, as browsers send its requests.
        "host: localhost\r\nsec-fetch-site: same-origin",
        "host: localhost:8000\r\norigin: http://localhost:8000\r\nsec-fetch-site: same-origin",
    ] {
        assert_eq!(status(daemon.client(), "/v2", head), 200, "{head}");
    }
    let mut old = daemon.client();
    old.send(b"GET /v2 HTTP/1.0\r\n\r\n");
    assert_eq!(old.receive().status, 200);
    let mut absolute = daemon.client();
    absolute.send(b"GET http://far.example/v2 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let told = absolute.receive();
    assert_eq!((told.status, told.header("www-authenticate")), (401, Some("Bearer realm=\"ledge\"")), "{told:?}");
    assert!(told.error().contains("http.allowed_hosts") && told.error().contains("far.example"), "{}", told.error());
}
