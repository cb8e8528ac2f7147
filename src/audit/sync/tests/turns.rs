//! The times at which the log is sent, and its reported state.

use http::Method;
use ledge_service::audit_event::AuditEvent;

use super::platform::PlatformFault;
use super::*;
use crate::record::{Actor, ActorKind, AuditRecord, Timestamp, VERSION};

/// Runs the task until `waited` is done.
async fn running(task: AuditSyncTask, waited: impl Future<Output = ()>) {
    tokio::select! {
        () = task.run() => {}
        () = waited => {}
    }
}

/// Waits until the status is so; the task runs in between.
async fn until(state: &AuditState, is: impl Fn(&AuditSyncStatus) -> bool) {
    while !is(&state.status().sync.unwrap_or_default()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_urgent_does_not_wait_for_the_interval() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let task = of.task(&platform);
    let state = of.state.clone();
    running(task, async {
        state.publish(of.grow(2, "r"));
        until(&state, |sync| sync.size == 2).await;
        state.publish(of.grow(1, "r"));
        state.publish(PublishedCheckpoint { is_urgent: true, ..of.grow(1, "r") });
        until(&state, |sync| sync.size == 4).await;
    })
    .await;
    assert_eq!(platform.files()["/audit/box-1/1/checkpoint"], of.head().checkpoint.note);
    let sync = state.status().sync.unwrap();
    assert!(sync.at_ms.is_some() && sync.waiting_since_ms.is_none() && sync.url == platform.url(), "{sync:?}");
}

#[tokio::test]
async fn a_whole_tile_does_not_wait_for_the_interval() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let task = of.task(&platform);
    let state = of.state.clone();
    running(task, async {
        state.publish(of.grow(2, "r"));
        until(&state, |sync| sync.size == 2).await;
        state.publish(of.grow(254, "r"));
        until(&state, |sync| sync.size == 256).await;
    })
    .await;
}

#[tokio::test]
async fn a_day_of_a_quiet_box_is_less_than_a_megabyte() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let mut task = of.task(&platform);
    // It asks for updates every five minutes, and each time is a record of as many bytes as this one.
    let record = "a connection to the platform, as long as such records are".repeat(4);
    let times = 86_400 / task.settings.config.interval_s;
    for _ in 0..times {
        let head = of.grow(288 / times, &record);
        copy_up_to(&mut task, &head).await.unwrap();
    }
    assert!(of.head().checkpoint.size >= 288 && platform.bytes() < 1 << 20, "{} bytes", platform.bytes());
}

#[tokio::test]
async fn it_recovers_from_an_error_by_itself_and_says_what_waits_since_when() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let actor = Actor { kind: ActorKind::Local, tag: None };
    let record = AuditRecord { v: VERSION, seq: 0, ts: Timestamp(4_711_000), actor, event: AuditEvent::Stopped };
    of.log.append(&record.to_line()).unwrap();
    platform.misbehave(|method, _, _| (method == Method::PUT).then_some(PlatformFault::Status(403)));
    let task = of.task(&platform);
    let state = of.state.clone();
    running(task, async {
        state.publish(of.grow(1, "r"));
        until(&state, |sync| sync.error.is_some()).await;
        let sync = state.status().sync.unwrap();
        assert!((sync.size, sync.at_ms, sync.waiting_since_ms) == (0, None, Some(4_711_000)), "{sync:?}");
        platform.answered(8).await;
        platform.behave();
        until(&state, |sync| sync.error.is_none() && sync.size == 2).await;
    })
    .await;
    assert_eq!(platform.files(), of.files());
}

#[tokio::test]
async fn a_fork_is_told_once_and_the_next_log_is_sent() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    platform.set("/audit/box-1/1/tile/entries/000.p/2", b"another");
    let task = of.task(&platform);
    let state = of.state.clone();
    running(task, async {
        state.publish(of.grow(2, "r"));
        until(&state, |sync| sync.error.is_some()).await;
        assert_eq!(state.take_news(), [AuditSyncEvent::Forked { generation: 1 }]);
        let SyncBox { folder, key, log, state } = of;
        let log = log.begin_another("forked", &device()).unwrap().log;
        of = SyncBox { folder, key, log, state };
        let head = of.grow(3, "r");
        of.state.publish(head);
        until(&of.state, |sync| sync.size == 3 && sync.error.is_none()).await;
    })
    .await;
    assert_eq!(state.take_news(), [AuditSyncEvent::Has { generation: 2, size: 3 }]);
}

#[tokio::test]
async fn a_restart_knows_what_the_platform_has_without_the_network() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(300, "r");
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    of.state.take_news();
    platform.misbehave(|_, _, _| Some(PlatformFault::CutBefore));
    let task = of.task(&platform);
    let state = of.state.clone();
    running(task, async {
        state.publish(of.grow(1, "r"));
        until(&state, |sync| sync.error.is_some()).await;
    })
    .await;
    assert_eq!(state.take_news(), [AuditSyncEvent::Has { generation: 1, size: 300 }]);
    assert_eq!(state.status().sync.unwrap().size, 300);
}
