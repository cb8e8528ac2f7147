//! Sign-in at the page: codes, sessions of two halves, and their end.

use ledge::audit_event::AuditEvent;
use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::audit::{records, stop};
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};

/// The two halves of a session, as a browser has them.
struct Browser<'d> {
    daemon: &'d TestDaemon,
    /// `NAME=VALUE`.
    cookie: String,
    token: String,
}

/// A box that allows nothing without a credential over TCP.
fn root() -> TestRoot {
    TestRoot::closed().models(&["add_sub"]).set("access.loopback=[]")
}

fn code(daemon: &TestDaemon, roles: &[&str]) -> String {
    let answer = daemon.unix_client().post_json("/session/codes", &json!({"name": "anna", "roles": roles}));
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{answer:?}");
    answer.json()["code"].as_str().unwrap().to_owned()
}

impl<'d> Browser<'d> {
    fn sign_in(daemon: &'d TestDaemon, secret: &Value) -> Result<Self, Response> {
        let answer = daemon.client().post_json("/session", secret);
        if answer.status != 200 {
            return Err(answer);
        }
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let set = answer.header("set-cookie").unwrap();
        let (cookie, attributes) = set.split_once(';').unwrap();
        assert_eq!(attributes, " Path=/; Secure; HttpOnly; SameSite=Strict");
        let token = answer.json()["session"].as_str().unwrap().to_owned();
        let (id, _) = token.split_once('.').unwrap();
        assert!(cookie.starts_with(&format!("__Host-ledge-{id}=")), "{cookie}");
        Ok(Self { daemon, cookie: cookie.to_owned(), token })
    }

    fn with_code(daemon: &'d TestDaemon, roles: &[&str]) -> Self {
        Self::sign_in(daemon, &json!({"code": code(daemon, roles)})).unwrap()
    }

    fn ask(&self, method: &str, path: &str) -> Response {
        self.ask_with(method, path, &[])
    }

    fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let own = [("x-ledge-session", &*self.token), ("cookie", &*self.cookie)];
        self.daemon.client().request(method, path, &[&own, headers].concat(), b"")
    }
}

fn access(response: &Response) -> (Value, Value, Value) {
    assert_eq!(response.status, 200, "{response:?}");
    let document = response.json();
    (document["name"].clone(), document["credential"].clone(), document["roles"].clone())
}

#[test]
fn a_code_signs_one_person_in_with_its_roles_until_they_sign_out() {
    let daemon = root().start();
    let code = code(&daemon, &["viewer", "infer"]);
    let typed = code.to_lowercase().replace('-', " ");
    let anna = Browser::sign_in(&daemon, &json!({"code": typed})).unwrap();
    assert_eq!(
        access(&anna.ask("GET", "/access")),
        (json!("person:anna"), json!("session"), json!(["viewer", "infer"]))
    );
    assert_eq!(anna.ask("GET", "/v2/models/add_sub").status, 200);

    let again = Browser::sign_in(&daemon, &json!({"code": code})).err().unwrap();
    assert!(again.status == 401 && again.error().contains("was used"), "{again:?}");
    let refused = anna.ask("GET", "/keys");
    assert!(refused.status == 403 && refused.error().contains("`sudo ledge login --role admin`"), "{refused:?}");

    let sessions = daemon.unix_client().get("/sessions").json();
    let [session] = &sessions["sessions"].as_array().unwrap()[..] else { panic!("{sessions}") };
    assert_eq!((&session["name"], &session["is_caller"]), (&json!("person:anna"), &json!(false)));

    let out = anna.ask("POST", "/session/end");
    let cookie = out.header("set-cookie").unwrap();
    assert!(
        out.status == 200 && cookie.ends_with("=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"),
        "{out:?}"
    );
    let ended = anna.ask("GET", "/access");
    assert_eq!((ended.status, ended.error().as_str()), (401, "the sign-in has ended: sign in again"));
    assert_eq!(daemon.unix_client().post_json("/session/end", &json!({})).status, 409, "nothing to sign out of");

    let root = stop(daemon);
    let events: Vec<_> = records(&root, 1).into_iter().map(|record| record.event).collect();
    let has = |wanted: &dyn Fn(&AuditEvent) -> bool| events.iter().any(wanted);
    assert!(has(
        &|event| matches!(event, AuditEvent::SignInCodeMade { name, roles, .. } if name.as_str() == "anna" && roles == &["viewer", "infer"])
    ));
    assert!(has(&|event| matches!(event, AuditEvent::SessionBegan { by } if by.as_str() == "code")));
    assert!(has(&|event| matches!(event, AuditEvent::SessionEnded { cause } if cause.as_str() == "signed_out")));
    assert!(!format!("{events:?}").contains(&code));
}

#[test]
fn neither_half_of_a_session_has_any_role_and_a_planted_cookie_gives_none() {
    // As a page of another port of this host has it: the cookie goes there, too. With the roles of this machine, so that a
    // bad session would be seen to fall back to them.
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let (anna, mallory) = (Browser::with_code(&daemon, &["admin"]), Browser::with_code(&daemon, &["viewer"]));
    let access_of = |headers: &[(&str, &str)]| daemon.client().request("GET", "/access", headers, b"");

    let cookie_alone = access(&access_of(&[("cookie", &anna.cookie)]));
    assert_eq!((cookie_alone.0, cookie_alone.1), (json!("ip:127.0.0.1"), json!("none")), "it is no credential");
    let planted = format!("{}={}", anna.cookie.split_once('=').unwrap().0, mallory.cookie.split_once('=').unwrap().1);
    let both = format!("{}; {planted}", anna.cookie);
    for (name, headers) in [
        ("the token alone", vec![("x-ledge-session", &*anna.token)]),
        ("the cookie of another", vec![("x-ledge-session", &*anna.token), ("cookie", &*mallory.cookie)]),
        ("a planted value", vec![("x-ledge-session", &*anna.token), ("cookie", &*planted)]),
        ("a planted second one", vec![("x-ledge-session", &*anna.token), ("cookie", &*both)]),
        ("nothing", vec![("x-ledge-session", "")]),
    ] {
        let refused = access_of(&headers);
        assert_eq!(refused.status, 401, "{name}: {refused:?}");
    }
    let twice =
        access_of(&[("x-ledge-session", &anna.token), ("x-ledge-session", &anna.token), ("cookie", &anna.cookie)]);
    assert_eq!(twice.status, 400, "{twice:?}");
    let key = format!("Bearer ledge_0123abcd_{}", "A".repeat(43));
    assert_eq!(anna.ask_with("GET", "/access", &[("authorization", &key)]).status, 400, "two credentials");

    // A page of another site or port cannot use both halves either.
    for (header, value) in [
        ("origin", "https://far.example"),
        ("origin", "http://127.0.0.1:1"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("host", "far.example"),
    ] {
        let refused = anna.ask_with("GET", "/access", &[(header, value)]);
        assert!(matches!(refused.status, 400 | 401), "{header}: {value}: {refused:?}");
        let body = json!({"code": "0000000000000"}).to_string();
        let refused = daemon.client().request("POST", "/session", &[(header, value)], body.as_bytes());
        assert!(refused.status >= 400 && !refused.error().contains("sign-in code"), "{header}: {refused:?}");
    }
    assert_eq!(access(&anna.ask("GET", "/access")).0, json!("person:anna"), "all the while");
}

#[test]
fn a_session_of_a_key_has_its_access_and_ends_with_it() {
    let root = root();
    let till = key(&root, &["till", "--role", "viewer"]);
    let daemon = root.start();
    let browser = Browser::sign_in(&daemon, &json!({"key": till})).unwrap();
    assert_eq!(access(&browser.ask("GET", "/access")), (json!("key:till"), json!("session"), json!(["viewer"])));
    assert_eq!(daemon.unix_client().post_json("/keys/till/revoke", &json!({})).status, 200);
    assert_eq!(browser.ask("GET", "/access").status, 401);
    assert_eq!(daemon.unix_client().get("/sessions").json(), json!({"sessions": []}));
    let refused = Browser::sign_in(&daemon, &json!({"key": till})).err().unwrap();
    assert!(refused.status == 401 && refused.error().contains("revoked"), "{refused:?}");
    let root = stop(daemon);
    let ended = |event: &AuditEvent| matches!(event, AuditEvent::SessionEnded { cause } if cause.as_str() == "key");
    assert!(records(&root, 1).iter().any(|record| ended(&record.event)));
}

#[test]
fn ten_thousand_wrong_codes_find_none_and_the_right_one_works_all_the_same() {
    let daemon = root().start();
    let code = code(&daemon, &["viewer"]);
    let mut client: Client = daemon.client();
    let mut counted = [0, 0];
    for number in 0..10_000 {
        let answer = client.post_json("/session", &json!({"code": format!("{number:013}")}));
        match answer.status {
            401 => counted[0] += 1,
            429 => counted[1] += 1,
            _ => panic!("{answer:?}"),
        }
    }
    assert!(counted[0] < 100, "{counted:?}");
    assert!(Browser::sign_in(&daemon, &json!({"code": code})).is_ok());
    let large = json!({"code": "0".repeat(2000)});
    assert_eq!(client.post_json("/session", &large).status, 413, "before anybody is known");
    let mut client = daemon.client();
    for body in [json!({}), json!({"code": 1}), json!({"code": "a", "key": "b"}), json!(null)] {
        assert_eq!(client.post_json("/session", &body).status, 400, "{body}");
    }
}

#[test]
fn an_admin_key_makes_no_codes_and_root_ends_every_session() {
    let root = root();
    let admin = key(&root, &["desk", "--role", "admin"]);
    let daemon = root.start();
    let body = json!({"name": "anna", "roles": ["admin"]}).to_string();
    let refused = daemon.client().request("POST", "/session/codes", &[("x-api-key", &*admin)], body.as_bytes());
    assert!(refused.status == 403 && refused.error().contains("on the box"), "{refused:?}");

    let (anna, ben) = (Browser::with_code(&daemon, &["viewer"]), Browser::with_code(&daemon, &["admin"]));
    let listed = daemon.root.command(&["login", "list"]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().matches("person:anna").count(), 2);
    let id = anna.token.split_once('.').unwrap().0;
    assert!(daemon.root.command(&["login", "end", id]).status().unwrap().success());
    assert_eq!(anna.ask("GET", "/access").status, 401);
    assert_eq!(ben.ask("GET", "/access").status, 200);
    assert_eq!(daemon.root.command(&["login", "end", id]).output().unwrap().status.code(), Some(1));
    assert!(daemon.root.command(&["login", "end", "all"]).status().unwrap().success());
    assert_eq!(ben.ask("GET", "/access").status, 401);
}

#[test]
fn the_command_line_shows_a_code_that_signs_in_and_a_restart_ends_the_session() {
    let daemon = root().start();
    let made = daemon.root.command(&["login", "--name", "carla", "--role", "operator"]).output().unwrap();
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success() && text.contains("Sign in as carla (operator)"), "{text}");
    let code = text.lines().find_map(|line| line.strip_prefix("    ").filter(|rest| rest.len() == 15)).unwrap();
    let browser = Browser::sign_in(&daemon, &json!({"code": code})).unwrap();
    assert_eq!(access(&browser.ask("GET", "/access")).0, json!("person:carla"));
    let (cookie, token) = (browser.cookie.clone(), browser.token.clone());

    let root = stop(daemon);
    let daemon = root.start();
    let browser = Browser { daemon: &daemon, cookie, token };
    assert_eq!(browser.ask("GET", "/access").status, 401);
}
