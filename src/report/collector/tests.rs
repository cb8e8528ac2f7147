//! Records of simulated boxes, without a log on the disk.

use ledge_audit::record::{Timestamp, VERSION};
use ledge_base::clock::TimeZone;
use ledge_base::month::Month;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::inference::CallOutcome;

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn november() -> Range<u64> {
    "2026-11".parse::<Month>().unwrap().span_ms(&TimeZone::utc())
}

/// Collects events at their times, as records of log 1.
fn collected(events: Vec<(u64, AuditEvent)>) -> CollectedMonth {
    let names = CallerNames::default();
    let mut collector = MonthCollector::new(november(), &names);
    for (seq, (at_ms, event)) in (0..).zip(events) {
        let actor = Actor::of(&Principal::Local, None);
        collector.take(1, &AuditRecord { v: VERSION, seq, ts: Timestamp(at_ms), actor, event }, true);
    }
    collector.finish()
}

fn counted(bytes: u64, since_ms: u64) -> AuditEvent {
    AuditEvent::EgressCounted {
        destination: "a:443".into(),
        region: "eu".into(),
        since_ms,
        connections: 1,
        sent: [("audit".into(), bytes)].into(),
        received: 0,
    }
}

fn loaded(version: u64) -> AuditEvent {
    AuditEvent::ModelLoaded { model: "m".parse().unwrap(), version: version.try_into().unwrap(), digest: "ab".into() }
}

#[test]
fn bytes_belong_to_the_month_in_which_their_interval_begins() {
    let (begins, ends) = (november().start, november().end);
    let since = begins - 100 * HOUR_MS;
    let egress = collected(vec![
        (begins - 24 * HOUR_MS, counted(10, since)),
        (begins + 1000, counted(30, since)),
        (begins + 24 * HOUR_MS, counted(70, since)),
        (ends + 1000, counted(150, since)),
        (ends + 24 * HOUR_MS, counted(310, since)),
    ]);
    let [row] = egress.egress.sent.as_slice() else { panic!("{:?}", egress.egress) };
    // From just after midnight of 1 November, 30, to just after that of 1 December, 150.
    assert_eq!((row.bytes, row.evidence[0].seqs.as_slice()), (120, &[1, 2, 3][..]));
    assert!(egress.span.has_uncertain_egress, "the interval is longer than a day");
}

#[test]
fn counts_that_began_again_are_not_taken_for_a_difference() {
    let begins = november().start;
    let egress = collected(vec![
        (begins + 1000, counted(500, begins - HOUR_MS)),
        (begins + HOUR_MS, counted(40, begins + 2000)),
        (begins + 2 * HOUR_MS, counted(90, begins + 2000)),
    ]);
    assert_eq!(egress.egress.sent[0].bytes, 90);
}

#[test]
fn a_version_serves_until_it_is_unloaded_or_the_box_stops_or_restarts() {
    let begins = november().start;
    let models = collected(vec![
        (begins - 9 * HOUR_MS, loaded(1)),
        (begins - 8 * HOUR_MS, AuditEvent::Stopped),
        (begins - 7 * HOUR_MS, AuditEvent::Started { version: "1".into() }),
        (begins - 6 * HOUR_MS, loaded(1)),
        (begins + HOUR_MS, loaded(2)),
        (begins + HOUR_MS, AuditEvent::ModelUnloaded { model: "m".parse().unwrap(), version: 1.try_into().unwrap() }),
        (begins + 2 * HOUR_MS, AuditEvent::Idle),
        (begins + 5 * HOUR_MS, AuditEvent::Started { version: "1".into() }),
        (begins + 6 * HOUR_MS, loaded(2)),
        (november().end + HOUR_MS, AuditEvent::Stopped),
    ]);
    let served: Vec<_> = models.models.served.iter().map(|of| (of.version, of.until.clone(), of.ended_by)).collect();
    assert_eq!(
        served,
        [
            (1, Some(time(begins + HOUR_MS)), Some("unloaded")),
            // The last sign of life before the restart.
            (2, Some(time(begins + 2 * HOUR_MS)), Some("restarted")),
            (2, None, None),
        ]
    );
}

#[test]
fn many_callers_take_bounded_memory_and_no_call_is_missing() {
    let names = CallerNames::default();
    let mut collector = MonthCollector::new(november(), &names);
    let key = TagKey::new(1, [7; 32]);
    let callers = 6000;
    for seq in 0..callers {
        let actor = Actor::of(&Principal::Key(seq.to_string().into()), Some(&key));
        let event = AuditEvent::InferenceMinute {
            model: Some("m".parse().unwrap()),
            version: None,
            digest: None,
            outcome: CallOutcome::Ok,
            calls: 1 + seq % 7,
            us: 10,
            us_max: 10,
        };
        let ts = Timestamp(november().start + seq);
        collector.take(1, &AuditRecord { v: VERSION, seq, ts, actor, event }, true);
    }
    let calls = collector.finish().calls;
    let others = calls.others.unwrap();
    let listed: u64 = calls.rows.iter().map(|row| row.counts.calls).sum();
    assert_eq!(calls.rows.len(), 1000);
    assert!(calls.rows.iter().all(|row| row.counts.calls == 7 || row.counts.calls == 6), "the largest are listed");
    assert_eq!(listed + others.calls, calls.total.calls);
    assert_eq!(calls.total.calls, (0..callers).map(|seq| 1 + seq % 7).sum::<u64>());
}

#[test]
fn a_caller_has_its_name_where_the_box_knows_it() {
    let (key, other) = (TagKey::new(1, [7; 32]), TagKey::new(2, [8; 32]));
    let till = Principal::Key("till-7".into());
    let names = CallerNames::new(&[key.clone(), other.clone()], std::slice::from_ref(&till));
    for key in [&key, &other] {
        assert_eq!(names.of(&Actor::of(&till, Some(key))), "key:till-7");
    }
    let stranger = Actor::of(&Principal::Peer([10, 0, 0, 7].into()), Some(&key));
    assert_eq!(names.of(&stranger), format!("ip {}", stranger.tag.unwrap()));
    assert_eq!(names.of(&Actor::of(&Principal::Local, None)), "local");
}
