//! Bad links and servers.

use super::platform::PlatformFault;
use super::*;
use http::Method;

#[tokio::test]
async fn a_platform_that_is_brought_up_to_a_head_has_the_files_of_the_log_and_nothing_twice() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let mut task = of.task(&platform);
    for grown in [1, 254, 1, 700] {
        let head = of.grow(grown, "r");
        copy_up_to(&mut task, &head).await.unwrap();
        let (there, expected) = (platform.files(), of.files());
        for (path, content) in &expected {
            assert_eq!(there.get(path), Some(content), "{path}");
        }
        // The other files are partial tiles of earlier heads.
        assert!(there.keys().all(|path| expected.contains_key(path) || path.contains(".p/")), "{:?}", there.keys());
    }
    let requests = platform.take_requests();
    let puts: Vec<_> =
        requests.iter().filter(|request| request.starts_with("PUT") && !request.contains("/checkpoint")).collect();
    assert_eq!(puts.iter().collect::<BTreeSet<_>>().len(), puts.len());
    assert!(puts.iter().all(|put| put.ends_with(" 201")), "{puts:?}");
    assert_eq!(of.state.take_news().last(), Some(&AuditSyncEvent::Has { generation: 1, size: 956 }));
    // Asked again, nothing is sent; and after a restart neither.
    let head = of.head();
    copy_up_to(&mut task, &head).await.unwrap();
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert_eq!(platform.take_requests(), ["GET /audit/box-1/1/checkpoint 200"; 2]);
}

#[tokio::test]
async fn the_checkpoint_comes_last_however_the_link_breaks() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(600, "r");
    for (number, fault) in
        [PlatformFault::CutBefore, PlatformFault::CutAfter, PlatformFault::Status(500), PlatformFault::Status(507)]
            .into_iter()
            .enumerate()
    {
        for at in 0..9 {
            platform.restore(BTreeMap::new());
            let mut task = of.task(&platform);
            task.hint = AuditSyncProgress { url: task.hint.url, ..AuditSyncProgress::default() };
            let begun = std::sync::atomic::AtomicUsize::new(0);
            platform.misbehave(move |_, _, _| {
                (begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= at).then_some(fault)
            });
            let error = copy_up_to(&mut task, &head).await.unwrap_err();
            assert!(!error.is_of_one_log(), "{error}");
            let there = platform.files();
            if let Some(checkpoint) = there.get("/audit/box-1/1/checkpoint") {
                // It was taken, and the answer lost.
                assert!(checkpoint == &head.checkpoint.note && there == of.files(), "{number} {at}");
            }
            platform.behave();
            copy_up_to(&mut task, &head).await.unwrap();
            assert_eq!(platform.files(), of.files(), "{number} {at}");
        }
    }
}

#[tokio::test]
async fn what_was_sent_is_not_sent_again_after_a_break_and_a_restart() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(10 * 256 + 7, "r");
    let mut task = of.task(&platform);
    platform.misbehave(|_, path, _| path.ends_with("/tile/0/008").then_some(PlatformFault::Status(500)));
    copy_up_to(&mut task, &head).await.unwrap_err();
    platform.behave();
    platform.take_requests();
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert_eq!(platform.files(), of.files());
    let requests = platform.take_requests();
    // The last of those that it has is asked for: the platform may have lost them.
    let mut again: Vec<_> =
        requests.iter().filter(|request| request.starts_with("PUT") && request.contains("s/00")).collect();
    again.sort();
    let tiles: Vec<_> = again.iter().map(|request| request.split(' ').nth(1).unwrap()).collect();
    assert_eq!(tiles, ["007", "008", "009"].map(|tile| format!("/audit/box-1/1/tile/entries/{tile}")));
}

#[tokio::test]
async fn a_platform_that_lost_what_it_took_gets_it_again() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let mut task = of.task(&platform);
    let head = of.grow(600, "r");
    copy_up_to(&mut task, &head).await.unwrap();
    let backup = platform.files();
    let head = of.grow(5 * 256, "r");
    platform.misbehave(|_, path, _| path.ends_with("/tile/0/006").then_some(PlatformFault::Status(500)));
    copy_up_to(&mut task, &head).await.unwrap_err();
    assert!(task.hint.sent(1, 600) >= 5);
    platform.behave();
    platform.restore(backup.clone());
    copy_up_to(&mut task, &head).await.unwrap();
    assert!(of.files().iter().all(|(path, content)| platform.files().get(path) == Some(content)));
    // And a checkpoint that is older than the last one counts, too.
    platform.restore(backup);
    copy_up_to(&mut task, &head).await.unwrap();
    assert!(of.files().iter().all(|(path, content)| platform.files().get(path) == Some(content)));
}

#[tokio::test]
async fn what_is_wrong_with_the_platform_is_told_in_words() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(3, "r");
    for (status, word) in [
        (400, "client certificate"),
        (401, "user name"),
        (403, "denies access; does the certificate name this box"),
        (404, "folder is missing"),
        (405, "dav_methods"),
        (409, "create_full_put_path"),
        (413, "client_max_body_size"),
        (500, "look into its log"),
        (507, "disk is full"),
        (301, "redirects are not followed"),
    ] {
        platform.misbehave(move |method, _, _| (method == Method::PUT).then_some(PlatformFault::Status(status)));
        let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err().to_string();
        assert!(error.contains(&format!("status {status}")) && error.contains(word), "{error}");
    }
    platform.misbehave(|_, _, _| Some(PlatformFault::RetryAfter));
    let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_hours(1)));
}

#[tokio::test]
async fn what_is_damaged_or_gone_on_this_box_is_told_and_never_sent() {
    let mut of = SyncBox::new();
    let head = of.grow(600, "r");
    let folder = log_folder(of.folder.path(), 1);
    for (path, changes) in [("tile/entries/001", true), ("tile/0/001", true), ("tile/entries/001", false)] {
        let file = folder.join(path);
        let mut content = std::fs::read(&file).unwrap();
        let whole = content.clone();
        if changes {
            *content.last_mut().unwrap() ^= 1;
            ledge_base::durable::replace(&file, &content).unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        // A request that was under way when it failed may come later: not into the next round.
        let platform = TestPlatform::start().await;
        let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
        assert_eq!(matches!(error, AuditSyncError::Damaged { .. }), changes, "{error}");
        assert_eq!(matches!(error, AuditSyncError::Missing { .. }), !changes, "{error}");
        let there: Vec<_> = platform.files().into_keys().collect();
        assert!(
            !there.iter().any(|file| file.ends_with(path) || file.ends_with("/checkpoint")),
            "{path} {changes} {error}: {there:?}"
        );
        ledge_base::durable::replace(&file, &whole).unwrap();
    }
    let platform = TestPlatform::start().await;
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert_eq!(platform.files(), of.files());
}
