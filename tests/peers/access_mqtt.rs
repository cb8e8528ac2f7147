//! Access control over a broker: each topic of Ledge for every role, scope and key, and the grants of `[access.mqtt]`.

use ledge::identity::access::Role;
use serde_json::{Value, json};

use crate::access_table::Table;
use crate::boxes::{logged, root, start};
use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, model_folder, write};
use crate::message::{Message, Outgoing};
use crate::mqtt::Peer;
use crate::platform::{Fleet, look, status};

/// The topics that are answered.
const TOPICS: [&str; 3] =
    ["ledge/v1/box/infer/add_sub", "ledge/v1/box/infer/add_sub/versions/1", "ledge/v1/shop/infer/add_sub"];

/// Makes a key by the command line.
pub fn key(root: &TestRoot, arguments: &[&str]) -> String {
    let made = root.command(&[&["keys", "create"], arguments].concat()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim_end().to_owned()
}

/// A key with its name, its role, and the only model that it is for.
struct Held {
    name: String,
    key: String,
    role: Role,
    model: Option<&'static str>,
}

/// The keys of every role, for all models, for the one that is asked and for another.
fn keys(root: &TestRoot) -> Vec<Held> {
    let mut made = Vec::new();
    for role in Role::ALL {
        for model in [None, Some("add_sub"), Some("other")] {
            let name = format!("{role}-{}", model.unwrap_or("all"));
            let scope = model.map_or(vec![], |model| vec!["--model", model]);
            let key = key(root, &[&[name.as_str(), "--role", role.as_str()][..], &scope].concat());
            made.push(Held { name, key, role, model });
        }
    }
    made
}

/// Bad keys: each with a word of the answer.
fn bad_keys(root: &TestRoot) -> Vec<(String, &'static str)> {
    let good = key(root, &["a-good-one", "--role", "admin"]);
    let revoked = key(root, &["revoked", "--role", "admin"]);
    let expired = key(root, &["expired", "--role", "admin", "--expires", "1d"]);
    let foreign = key(&TestRoot::closed(), &["foreign", "--role", "admin"]);
    assert!(root.command(&["keys", "revoke", "revoked"]).output().unwrap().status.success());
    // As time would.
    let path = root.folder.path().join("keys.json");
    let mut store: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let record = store["keys"].as_array_mut().unwrap().iter_mut().find(|key| key["name"] == "expired").unwrap();
    record["expires_ms"] = 1_700_000_000_000_u64.into();
    write(&path, store.to_string().as_bytes());
    let wrong = format!("{}{}", &good[..15], "A".repeat(43));
    [
        (revoked, "revoked"),
        (expired, "expired"),
        (foreign, "unknown API key"),
        (wrong, "unknown API key"),
        (good[1..].into(), "malformed"),
    ]
    .into_iter()
    .chain([(String::new(), "malformed")])
    .collect()
}

/// A call, and its answer.
fn ask(peer: &Peer, topic: &str, authorization: &[&str]) -> Message {
    let call = Outgoing::add_sub("1", 2.0).to(topic).answer_to("answers");
    let with = |call: Outgoing, value: &&str| call.user("authorization", value);
    peer.send(authorization.iter().fold(call, with));
    peer.receive()
}

fn asked(daemon: &TestDaemon) -> u64 {
    daemon.counted("add_sub").0.unwrap_or_default()
}

#[test]
fn each_topic_answers_whom_the_table_lets_ask() {
    let (table, broker) = (Table::read(), Broker::new());
    let may_ask =
        |roles: &[Role]| roles.iter().any(|role| table.row("POST", "/v2/models/{model}/infer").roles.contains(role));
    let granted = [
        (None, table.defaults["access.mqtt"].clone(), None),
        (Some("access.mqtt.roles=[]"), vec![], None),
        (Some("access.mqtt.roles=[\"feature-writer\"]"), vec![Role::FeatureWriter], None),
        (Some("access.mqtt.models=[\"other\"]"), table.defaults["access.mqtt"].clone(), Some("other")),
    ];
    for (setting, roles, models) in granted {
        let root = root(&broker).set("device.group=\"shop\"");
        let root = setting.into_iter().fold(root, TestRoot::set);
        let (held, bad) = (keys(&root), bad_keys(&root));
        let daemon = start(root);
        let peer = Peer::subscribed(&broker, "caller", "answers");
        let mut answered = 0;
        let anonymous = if may_ask(&roles) && models.is_none() { 200 } else { 401 };
        for topic in TOPICS {
            let answer = ask(&peer, topic, &[]);
            assert_eq!(answer.status(), anonymous, "{setting:?}, {topic}: {answer:?}");
            answered += u64::from(anonymous == 200);
            for Held { name, key, role, model } in &held {
                let expected = if may_ask(&[*role]) && *model != Some("other") { 200 } else { 403 };
                let answer = ask(&peer, topic, &[&format!("Bearer {key}")]);
                assert_eq!(answer.status(), expected, "{setting:?}, {topic}, {name}: {answer:?}");
                answered += u64::from(expected == 200);
            }
        }
        // It does not fall back to what callers without a key may.
        for (key, word) in &bad {
            let answer = ask(&peer, TOPICS[0], &[&format!("bearer {key}")]);
            assert_eq!(answer.status(), 401, "{setting:?}, {key}: {answer:?}");
            assert!(answer.error().contains(word) && !answer.text().contains("ledge_a"), "{answer:?}");
        }
        for other in ["Basic eDp5", &held[0].key] {
            assert_eq!(ask(&peer, TOPICS[0], &[other]).status(), 401, "{setting:?}: another scheme, or none");
        }
        let [one, two] = [0, 1].map(|at| format!("Bearer {}", held[at].key));
        assert_eq!(ask(&peer, TOPICS[0], &[&one, &two]).status(), 401, "two keys");
        assert_eq!(asked(&daemon), answered, "what is refused is not run");
        // The broker does not identify its clients, so all of them share the limit of failures, and only that.
        let statuses: Vec<_> = (0..10).map(|_| ask(&peer, TOPICS[0], &["Bearer x"]).status()).collect();
        assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
        let admin = held.iter().find(|held| held.name == "admin-all").unwrap();
        assert_eq!(ask(&peer, TOPICS[0], &[&format!("Bearer {}", admin.key)]).status(), 200);
        assert!(held.iter().all(|held| !daemon.log().contains(&held.key)), "a key is in no log");
    }
}

#[test]
fn what_was_configured_and_what_is_no_call_need_no_key_and_give_none_anything() {
    let broker = Broker::new();
    let root = root(&broker).set("access.mqtt.roles=[]");
    let admin = format!("Bearer {}", key(&root, &["admin", "--role", "admin"]));
    let element = vec!["\"$.x\""; 16].join(", ");
    let binding = format!(
        "[[mqtt.bindings]]\ntopic = \"plant/+\"\nmodel = \"add_sub\"\npublish = \"sums/{{1}}\"\n\
         [mqtt.bindings.inputs]\nINPUT0 = [{element}]\nINPUT1 = [{element}]\n"
    );
    write(&root.folder.path().join("ledge.toml"), binding.as_bytes());
    let daemon = start(root);
    let peer = Peer::subscribed(&broker, "caller", "sums/#");
    peer.subscribe("answers");
    // A binding does what its owner configured, with any key and with none.
    for authorization in [None, Some("Bearer ledge_x"), Some(admin.as_str())] {
        let reading = Outgoing::json("plant/pump", &json!({"x": 2}));
        peer.send(authorization.into_iter().fold(reading, |message, value| message.user("authorization", value)));
        let sum = peer.receive();
        assert_eq!(
            (sum.topic.as_str(), sum.json()["outputs"][0]["data"][0].as_f64()),
            ("sums/pump", Some(4.0)),
            "{sum:?}"
        );
    }
    // There is no topic but those of calls: the best key administers nothing over a broker.
    let own = "ledge/v1/box";
    for topic in [
        "repository/models/add_sub/unload",
        "v2/repository/models/add_sub/unload",
        "unload/add_sub",
        "updates/check",
        "features/restore",
        "audit/logs/1/checkpoint",
        "desired",
        "online",
        "reported",
        "result/add_sub",
    ] {
        let order = Outgoing::json(&format!("{own}/{topic}"), &json!({})).answer_to("answers");
        peer.send(order.user("authorization", &admin));
    }
    for topic in ["infer/add_sub/unload", "infer/../v2/repository/models/add_sub/unload", "infer"] {
        let order = Outgoing::json(&format!("{own}/{topic}"), &json!({})).answer_to("answers");
        peer.send(order.user("authorization", &admin));
    }
    // They get no answer or an error; a call after them is answered as before.
    peer.send(Outgoing::add_sub("last", 2.0).answer_to("answers").user("authorization", &admin));
    loop {
        let answer = peer.receive();
        if answer.status() == 200 {
            assert_eq!(answer.id(), "last");
            break;
        }
        assert!((400..500).contains(&answer.status()), "{answer:?}");
    }
    let index = daemon.client().post_json("/v2/repository/index", &json!({})).json();
    assert_eq!(index[0]["state"], "READY", "{index}");
}

#[test]
fn a_hint_has_no_authority_whatever_it_says_and_whoever_sends_it() {
    let (fleet, broker) = (Fleet::new(""), Broker::new());
    fleet.platform.add_model("shapes", 1, &model_folder("release_good"), &[]);
    let root = fleet.enrol(TestRoot::new()).set("updates.poll_interval_s=86400");
    let root = root.set("access.mqtt.roles=[\"admin\"]");
    let admin = format!("Bearer {}", key(&root, &["admin", "--role", "admin"]));
    let daemon = root.set(&format!("mqtt.broker={:?}", broker.url())).start();
    logged(&daemon, "rollout.accepted", 1);
    let trusted = || {
        let told = status(&daemon);
        [told["subjects"].clone(), told["error"].clone(), told["trust"].clone()]
    };
    let before = trusted();
    let peer = Peer::subscribed(&broker, "somebody", "answers");
    for order in [
        json!({}),
        json!({"from": "file:///tmp", "reset": true, "repository": "file:///tmp"}),
        json!({"rollouts": [{"id": "r-9", "target": "models/shapes/9"}], "trust": "reset"}),
    ] {
        peer.send(Outgoing::json("ledge/v1/box-1/desired", &order).answer_to("answers").user("authorization", &admin));
    }
    // A hint has no answer: the first that comes is that of a call, which was sent after them.
    peer.send(Outgoing::add_sub("call", 2.0).to("ledge/v1/box-1/infer/shapes").answer_to("answers"));
    let answer = peer.receive();
    assert_eq!((answer.status(), answer.id().as_str()), (404, "call"), "{answer:?}");
    look(&daemon);
    assert_eq!(trusted(), before);
    // After a hint from any sender, the box only applies what the platform has signed.
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    peer.send(Outgoing::json("ledge/v1/box-1/desired", &json!("anything")));
    logged(&daemon, "update.committed", 1);
}
