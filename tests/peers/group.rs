//! Many boxes behind one topic.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::boxes::{named_root, start};
use crate::broker::{Broker, Setup};
use crate::daemon::TestDaemon;
use crate::message::Outgoing;
use crate::mqtt::Peer;

const REQUESTS: usize = 300;

/// A client of a group asks again when an answer has not come for so long.
const DEADLINE: Duration = Duration::from_secs(1);

fn member(broker: &Broker, name: &str) -> TestDaemon {
    start(named_root(broker, name).set("device.group=\"boxes\""))
}

fn request(id: &str) -> Outgoing {
    Outgoing::add_sub(id, 2.0).to("ledge/v1/boxes/infer/add_sub").answer_to("answers")
}

#[test]
fn every_request_to_a_group_is_answered_by_one_of_its_boxes() {
    let broker = Broker::new();
    let _daemons = ["first", "second", "third"].map(|name| member(&broker, name));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    peer.subscribe("ledge/v1/boxes/result/add_sub");
    for number in 0..REQUESTS {
        peer.send(request(&number.to_string()));
    }
    let (mut ids, mut devices) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    while ids.len() < REQUESTS {
        let answer = peer.receive();
        assert!((answer.sum() - 3.0).abs() < 1e-6);
        assert!(ids.insert(answer.id()), "answered twice: {answer:?}");
        *devices.entry(answer.device().to_owned()).or_default() += 1;
    }
    assert_eq!(devices.len(), 3, "{devices:?}");
    assert!(devices.values().all(|answers| *answers > REQUESTS / 10), "{devices:?}");
    // Without a response topic, in the group's name.
    peer.send(Outgoing::add_sub("group", 2.0).to("ledge/v1/boxes/infer/add_sub"));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), answer.id().as_str()), ("ledge/v1/boxes/result/add_sub", "group"));
    // Each has its own topics too.
    peer.send(Outgoing::add_sub("own", 2.0).to("ledge/v1/second/infer/add_sub").answer_to("answers"));
    assert_eq!(peer.receive().device(), "second");
}

#[test]
fn a_killed_member_answers_what_it_held_and_the_others_answer_who_asks_again() {
    let broker = Setup::new().persistent().start();
    let _others = ["first", "second"].map(|name| member(&broker, name));
    let third = member(&broker, "third");
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut killed = None;
    let mut third = Some(third);
    let mut answered = BTreeSet::new();
    for number in 0..REQUESTS {
        if number == REQUESTS / 3 {
            answered.insert(peer.receive().id());
            killed = third.take().map(TestDaemon::kill);
        }
        peer.send(request(&number.to_string()));
    }
    while let Some(answer) = peer.receive_within(DEADLINE) {
        answered.insert(answer.id());
    }
    let held: BTreeSet<_> =
        (0..REQUESTS).map(|number| number.to_string()).filter(|id| !answered.contains(id)).collect();
    // The clients ask again, until the broker gives each request to one that is there.
    let mut open = held.clone();
    for _ in 0..20 {
        for id in &open {
            peer.send(request(&format!("again {id}")));
        }
        while let Some(answer) = peer.receive_within(DEADLINE) {
            assert_ne!(answer.device(), "third");
            open.remove(answer.id().trim_start_matches("again "));
        }
        if open.is_empty() {
            break;
        }
    }
    assert!(open.is_empty(), "never answered by the others: {open:?}");
    // The member that was away is back, and so is its session with its messages.
    let _third = start(killed.unwrap());
    let mut by_third = BTreeSet::new();
    while by_third.len() < held.len() {
        let answer = peer.receive();
        if held.contains(&answer.id()) {
            assert_eq!(answer.device(), "third", "{answer:?}");
            by_third.insert(answer.id());
        }
    }
    assert!(!held.is_empty(), "the broker held nothing for the killed member");
}
