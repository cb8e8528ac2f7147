use super::*;
use crate::audit_event::AuditSink;

#[tokio::test]
async fn another_history_on_the_platform_is_an_alarm_and_another_log_begins() {
    let folder = tempfile::tempdir().unwrap();
    let config = AuditConfig { path: folder.path().to_owned(), ..AuditConfig::default() };
    let ((sink, queue), state) = (AuditSink::channel(), AuditState::default());
    let writer = Writer::new(&config, &"box-1".parse().unwrap(), queue, state.clone());
    let thread = std::thread::spawn(move || writer.run());
    let mut heads = state.heads();
    let is_of = |generation| {
        move |head: &Option<PublishedHead>| head.as_ref().is_some_and(|head| head.generation == generation)
    };
    sink.record_own(AuditEvent::Stopped);
    heads.wait_for(is_of(1)).await.unwrap();
    assert_eq!(state.status().alarm, None);

    state.tell(SyncNews::Forked { generation: 1 });
    heads.wait_for(is_of(2)).await.unwrap();
    let alarm = state.status().alarm.unwrap();
    assert_eq!(alarm, "ledge.audit/box-1/1: the platform has another history of it");
    sink.close();
    thread.join().unwrap();
}
