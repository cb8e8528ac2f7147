//! A simulated November 2026 of a box: its audit log, as the daemon would have written it.

use std::path::Path;

use ledge::accounts::ledger::{MonthLedger, ObjectiveSums, RowKey, UseSums};
use ledge::accounts::{AccountStore, IndicatorKind, encode};
use ledge::audit_event::inference::CallOutcome;
use ledge::audit_event::tag::TagKey;
use ledge::audit_event::{AuditEvent, PreviousLog};
use ledge::clock;
use ledge::drift::column::{Bins, Column, Reading, Side};
use ledge::drift::watch::WatchState;
use ledge::principal::Principal;

use crate::audit_log::AuditBox;
use crate::daemon::write;

/// A moment of the log.
pub fn at(text: &str) -> u64 {
    u64::try_from(clock::parse_micros(text).unwrap() / 1000).unwrap()
}

const DAY_MS: u64 = 86_400_000;

/// The callers: a name with hostile characters among them.
pub fn callers() -> Vec<Principal> {
    vec![
        Principal::Key("till-7".into()),
        Principal::Key("<b>till&8</b>".into()),
        Principal::Peer([10, 0, 0, 7].into()),
        Principal::Mqtt("line/3/camera/answers".into()),
        Principal::Local,
    ]
}

fn model(name: &str) -> ledge::names::ModelName {
    name.parse().unwrap()
}

fn loaded(name: &str, version: u64) -> AuditEvent {
    let digest = format!("{version:02x}").repeat(32);
    AuditEvent::ModelLoaded { model: model(name), version: version.try_into().unwrap(), digest }
}

fn minute(name: Option<&str>, outcome: CallOutcome, calls: u64) -> AuditEvent {
    let (us, us_max) = (calls * 1700, 9000 + calls);
    let version = name.map(|_| 2.try_into().unwrap());
    AuditEvent::InferenceMinute { model: name.map(model), version, digest: None, outcome, calls, us, us_max }
}

fn sent(destination: &str, day: u64) -> AuditEvent {
    let sent = [("audit".into(), 1000 * day), ("protocol".into(), 10 * day), ("pictures".into(), 7 * (day / 10))];
    let (destination, region, since_ms) = (destination.to_owned(), "uae".to_owned(), at("2026-10-01T00:00:00Z"));
    AuditEvent::EgressCounted { destination, region, since_ms, connections: day, sent: sent.into(), received: day }
}

/// Events of each day, deterministic and uneven.
fn of_day(day: u64, begins: u64, key: &TagKey) -> Vec<(u64, Principal, AuditEvent)> {
    let mut events = vec![(begins + 1000, Principal::Local, sent("platform.example:443", 10 + day))];
    if day.is_multiple_of(3) {
        events.push((begins + 1000, Principal::Local, sent("siem.example:6514", 10 + day)));
    }
    let outcomes =
        [CallOutcome::Ok, CallOutcome::Failed, CallOutcome::Refused, CallOutcome::Late, CallOutcome::Unavailable];
    let models = [Some("wine_mlp"), Some("minilm"), None];
    for (index, caller) in (0..).zip(callers()) {
        for (place, name) in (0..).zip(&models) {
            let turn = day * 7 + index * 3 + place;
            for part in 0..(turn % 4) {
                let of_turn = outcomes[usize::try_from((turn + part) % 4).unwrap()];
                let outcome = if name.is_none() { CallOutcome::Unavailable } else { of_turn };
                let calls = 1 + (turn * 13 + part * 5) % 97;
                let time = begins + 3_600_000 + turn * 60_000;
                events.push((time, caller.clone(), minute(*name, outcome, calls)));
            }
        }
        let (feature_view, calls, rows) = ("customers".to_owned(), 1 + day % 3, 5 + day);
        let entities = vec![key.of_text(&index.to_string())];
        let (time, unlisted) = (begins + 7_200_000 + index, 0);
        events.push((
            time,
            caller.clone(),
            if index % 2 == 0 {
                AuditEvent::FeaturesRead { feature_view, model: None, calls, rows, entities, unlisted }
            } else {
                AuditEvent::FeaturesPushed { feature_view, calls, rows, entities, unlisted }
            },
        ));
    }
    let connection = AuditEvent::ConnectionOpened {
        destination: "platform.example:443".into(),
        region: "uae".into(),
        purpose: "audit".into(),
        others: day % 2,
    };
    events.push((begins + 7_300_000, Principal::Local, connection));
    events.push((
        begins + 7_400_000,
        Principal::Local,
        AuditEvent::PicturesPublished { camera: "yard".parse().unwrap(), pictures: day },
    ));
    events.sort_by_key(|(time, ..)| *time);
    events
}

fn drift_fixed(name: &str, version: u64, origin: &'static str) -> AuditEvent {
    AuditEvent::DriftReferenceFixed { model: model(name), version: version.try_into().unwrap(), origin: origin.into() }
}

fn began(finding: &str, name: Option<&str>, status: &'static str) -> AuditEvent {
    let (finding, version) = (finding.to_owned(), name.map(|_| 2.try_into().unwrap()));
    AuditEvent::FindingBegan { finding, model: name.map(model), version, status: status.into(), others: 0 }
}

fn ended(finding: &str, name: Option<&str>) -> AuditEvent {
    let version = name.map(|_| 2.try_into().unwrap());
    AuditEvent::FindingEnded { finding: finding.to_owned(), model: name.map(model), version }
}

/// An event that happened once in the month.
fn once() -> Vec<(u64, Principal, AuditEvent)> {
    let local = Principal::Local;
    let moved = |stage: &'static str, cause: Option<&'static str>| AuditEvent::UpdateMoved {
        subject: "models/minilm".into(),
        version: 3.try_into().unwrap(),
        rollout: "november".into(),
        stage: stage.into(),
        cause: cause.map(Into::into),
    };
    let drifted = AuditEvent::UpdateMoved {
        subject: "models/minilm".into(),
        version: 5.try_into().unwrap(),
        rollout: "november-2".into(),
        stage: "rolled_back".into(),
        cause: Some("drift".into()),
    };
    let erased = AuditEvent::FeatureEntityErased { records: 2, views: 1, statement: Some("ab".repeat(32)) };
    vec![
        (at("2026-11-04T10:00:00Z"), local.clone(), moved("canary", None)),
        (at("2026-11-04T10:00:01Z"), local.clone(), loaded("minilm", 3)),
        (at("2026-11-05T10:00:00Z"), local.clone(), moved("rolled_back", Some("agreement"))),
        (
            at("2026-11-05T10:00:01Z"),
            local.clone(),
            AuditEvent::ModelUnloaded { model: model("minilm"), version: 3.try_into().unwrap() },
        ),
        (
            at("2026-11-06T10:00:00Z"),
            local.clone(),
            AuditEvent::ModelRefused { model: model("minilm"), version: 4.try_into().unwrap(), cause: None },
        ),
        (at("2026-11-07T10:00:00Z"), Principal::User(0), erased),
        (at("2026-11-08T10:00:00Z"), Principal::User(0), AuditEvent::KeyRevoked { name: "till-6".parse().unwrap() }),
        (
            at("2026-11-09T10:00:00Z"),
            Principal::Peer([10, 0, 0, 66].into()),
            AuditEvent::AuthenticationFailed { cause: "unknown".into(), others: 41 },
        ),
        (
            at("2026-11-10T10:00:00Z"),
            local.clone(),
            AuditEvent::RetentionEnforced { removed: [("inbox_files".into(), 12)].into(), failed: 0 },
        ),
        (at("2026-11-11T10:00:00Z"), local.clone(), drift_fixed("wine_mlp", 1, "accepted")),
        (at("2026-11-12T10:00:00Z"), local.clone(), drift_fixed("minilm", 2, "inherited")),
        (at("2026-11-13T10:00:00Z"), local.clone(), began("drift minilm", Some("minilm"), "warn")),
        (at("2026-11-14T10:00:00Z"), local.clone(), ended("drift minilm", Some("minilm"))),
        (at("2026-11-15T10:00:00Z"), local.clone(), began("drift minilm", Some("minilm"), "warn")),
        (at("2026-11-16T10:00:00Z"), local.clone(), began("objective wine latency", None, "fail")),
        (at("2026-11-16T10:05:00Z"), local.clone(), ended("objective wine latency", None)),
        (at("2026-11-17T10:00:00Z"), local.clone(), drifted),
        // The power fails.
        (at("2026-11-20T10:00:00Z"), local.clone(), AuditEvent::Started { version: "0.1.0".into() }),
        (at("2026-11-20T10:00:01Z"), local.clone(), loaded("minilm", 2)),
        (at("2026-11-20T10:00:02Z"), local, loaded("wine_mlp", 1)),
    ]
}

/// The log of a box from 20 October to 1 December 2026, signed.
pub fn simulated_month(key: &TagKey) -> AuditBox {
    let mut written = AuditBox::new();
    let local = Principal::Local;
    let begun = AuditEvent::LogBegun { cause: "new".into(), previous: None::<PreviousLog> };
    let october = at("2026-10-20T00:00:00Z");
    let mut all = vec![
        (october, local.clone(), begun),
        (october + 1, local.clone(), AuditEvent::Started { version: "0.1.0".into() }),
        (october + 2, local.clone(), loaded("wine_mlp", 1)),
        (october + 4, local.clone(), drift_fixed("wine_mlp", 1, "learnt")),
        (october + 3, local, loaded("minilm", 2)),
    ];
    for day in 0..=42 {
        all.extend(of_day(day, october + day * DAY_MS, key));
    }
    all.extend(once());
    all.sort_by_key(|(time, ..)| *time);
    written.write_all(all, Some(key));
    written.sign();
    written
}

/// Accounts, objectives and a watch on drift of November 2026, as a daemon leaves them.
pub fn add_own_figures(state: &Path) {
    let mut ledger = MonthLedger { through_ms: at("2026-11-30T23:00:00Z"), is_closed: true, ..MonthLedger::default() };
    for (place, (caller, model)) in
        [("key:till-7", "wine_mlp"), ("key:<b>till&8</b>", "minilm"), ("ip:10.0.0.7", "minilm")].into_iter().enumerate()
    {
        let n = place as u64 + 1;
        let sums = UseSums {
            calls: 12_345 * n,
            failed: 6 * n,
            refused: 7,
            cpu_ns: 987_654_321 * n,
            bytes_in: 1_000_003 * n,
            bytes_out: 2_007 * n,
            energy_uj: 77_777_777 * n,
        };
        ledger.add(RowKey { caller: caller.into(), model: model.into() }, &sums);
    }
    ledger.own.add(&UseSums { cpu_ns: 5_123_000_000, energy_uj: 4_000_000, ..UseSums::default() });
    ledger.estimated_uj = 1_000_000;
    let target = |allowed_ppm, time_max_us| ObjectiveSums { allowed_ppm, time_max_us, ..ObjectiveSums::default() };
    ledger.count_objective("wine", IndicatorKind::Latency, target(10_000, 20_000), 12_300, 45);
    ledger.count_objective("wine", IndicatorKind::Availability, target(1_000, 0), 12_339, 6);
    AccountStore::open(state).write_month("2026-11".parse().unwrap(), &encode(&ledger)).unwrap();

    let readings: Vec<_> = (0..50).map(|number| Reading::Number(f64::from(number))).collect();
    let columns = ["alcohol", "hue"].map(|name| Column::new(name, Side::Input, Bins::of(&readings).unwrap())).to_vec();
    let watch = WatchState { columns, learnt: 7, judged_calls: 4321, ..WatchState::default() };
    write(&state.join("drift/wine_mlp@1"), &ledge::drift::encoding::encode(&watch));
}
