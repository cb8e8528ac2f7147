//! Platforms with another history.

use ledge_base::durable;

use super::*;

const CHECKPOINT: &str = "/audit/box-1/1/checkpoint";

#[tokio::test]
async fn a_tile_with_other_bytes_is_a_fork_and_one_with_the_same_is_there() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(300, "r");
    for (path, content) in of.files() {
        if path != CHECKPOINT {
            platform.set(&path, &content);
        }
    }
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert_eq!(platform.files(), of.files());

    for path in ["/audit/box-1/1/tile/entries/001.p/44", "/audit/box-1/1/tile/1/000.p/1"] {
        for longer in [false, true] {
            let mut other = of.files()[path].clone();
            if longer {
                other.extend_from_slice(&[0; 100]);
            } else {
                other[10] ^= 1;
            }
            platform.restore(BTreeMap::from([(path.to_owned(), other)]));
            let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
            assert!(matches!(error, AuditSyncError::Forked { generation: 1, .. }), "{error}");
            assert!(!platform.files().contains_key(CHECKPOINT));
        }
        // A file that has only the beginning of its content shows a server that broke, and no fork.
        platform.restore(BTreeMap::from([(path.to_owned(), of.files()[path][..20].to_vec())]));
        let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
        assert!(matches!(error, AuditSyncError::Cut { length: 20, .. }), "{error}");
    }
}

#[tokio::test]
async fn a_checkpoint_that_this_log_never_had_is_a_fork() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    let head = of.grow(300, "r");
    // As a disk that was put back to an older image has it: the same key, another history.
    let other = SyncBox::new();
    durable::replace(&other.folder.path().join("key"), &std::fs::read(of.folder.path().join("key")).unwrap()).unwrap();
    let (key, _) =
        AuditKey::load_or_create(other.folder.path(), &device(), &ledge_identity::sealing::Sealer::none()).unwrap();
    let mut same = SyncBox { key, ..other };
    let shorter = same.grow(299, "other").checkpoint.note;
    let equal = same.grow(1, "other").checkpoint.note;
    let longer = same.grow(1, "other").checkpoint.note;
    let stranger = SyncBox::new().grow(3, "r").checkpoint.note;
    for note in [shorter, equal, longer, stranger] {
        let before = BTreeMap::from([(CHECKPOINT.to_owned(), note)]);
        platform.restore(before.clone());
        let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
        assert!(matches!(error, AuditSyncError::Forked { generation: 1, .. }), "{error}");
        assert_eq!(platform.files(), before);
    }
    for page in ["", "<html>Sign in</html>"] {
        platform.set(CHECKPOINT, page.as_bytes());
        let error = copy_up_to(&mut of.task(&platform), &head).await.unwrap_err();
        assert!(matches!(error, AuditSyncError::Checkpoint { .. }), "{error}");
    }
    // Its own goes on from there.
    platform.restore(BTreeMap::new());
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    let head = of.grow(300, "r");
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
}

#[tokio::test]
async fn an_older_log_is_completed_first_and_one_that_forked_holds_up_nothing() {
    let (platform, mut of) = (TestPlatform::start().await, SyncBox::new());
    of.grow(300, "r");
    let first = of.files();
    let SyncBox { folder, key, log, state } = of;
    let log = log.begin_another("forked", &device()).unwrap().log;
    let mut of = SyncBox { folder, key, log, state };
    let head = of.grow(20, "r");
    assert_eq!(head.generation, 2);
    let mut task = of.task(&platform);
    copy_up_to(&mut task, &head).await.unwrap();
    let both: BTreeMap<_, _> = first.into_iter().chain(of.files()).collect();
    assert_eq!(platform.files(), both);
    let order: Vec<_> = of.state.take_news();
    assert_eq!(
        order,
        [AuditSyncEvent::Has { generation: 1, size: 300 }, AuditSyncEvent::Has { generation: 2, size: 20 }]
    );
    // It is not looked at again, not even after a restart.
    platform.take_requests();
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert_eq!(platform.take_requests(), ["GET /audit/box-1/2/checkpoint 200"]);

    platform.restore(BTreeMap::new());
    std::fs::remove_file(of.folder.path().join("sync.json")).unwrap();
    platform.set("/audit/box-1/1/tile/entries/000", b"another");
    copy_up_to(&mut of.task(&platform), &head).await.unwrap();
    assert!(of.files().iter().all(|(path, content)| platform.files().get(path) == Some(content)));
    assert!(!platform.files().contains_key(CHECKPOINT));
}
