use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::key::{AuditKey, origin};
use crate::layout::{CHECKPOINT, TILE_WIDTH, changed, log_folder, push_entry};
use crate::local::LocalAuditLog;
use crate::log::AuditLog;
use crate::proof::{InclusionProof, ProofError};
use crate::record::{Actor, Timestamp, VERSION};

/// A box with a log.
struct LoggedBox {
    audit: TempDir,
    key: AuditKey,
    log: AuditLog,
}

fn device() -> DeviceName {
    "box-1".parse().unwrap()
}

fn record(seq: u64, event: AuditEvent) -> AuditRecord {
    let actor = Actor::of(&Principal::Local, None);
    AuditRecord { v: VERSION, seq, ts: Timestamp(1_795_000_000_000 + seq), actor, event }
}

impl LoggedBox {
    fn new() -> Self {
        let audit = tempfile::tempdir().unwrap();
        let (key, _) =
            AuditKey::load_or_create(audit.path(), &device(), &ledge_identity::sealing::Sealer::none()).unwrap();
        let log = AuditLog::open(audit.path(), &device(), &key).unwrap().log;
        Self { audit, key, log }
    }

    fn with(count: u64) -> Self {
        let mut writer = Self::new();
        writer.append(count);
        writer.sign();
        writer
    }

    fn append(&mut self, count: u64) {
        for _ in 0..count {
            self.append_event(AuditEvent::Stopped);
        }
        self.log.commit().unwrap();
    }

    fn append_event(&mut self, event: AuditEvent) {
        self.log.append(&record(self.log.size(), event).to_line()).unwrap();
    }

    fn sign(&mut self) -> SignedCheckpoint {
        self.log.sign(&self.key).unwrap().clone()
    }

    fn folder(&self) -> PathBuf {
        log_folder(self.audit.path(), self.log.generation())
    }

    /// As the platform has it.
    fn copy(&self) -> TempDir {
        let (copy, log) = (tempfile::tempdir().unwrap(), LocalAuditLog::open(&self.folder()));
        let size = self.log.checkpoint().unwrap().size;
        for tile in changed(0, size) {
            write(&copy.path().join(tile.path()), &log.tile(tile).unwrap().unwrap());
        }
        write(&copy.path().join(CHECKPOINT), &log.checkpoint().unwrap().unwrap());
        copy
    }

    fn place(&self, files: AuditLogFiles) -> LogToVerify {
        LogToVerify { files, generation: None, keys: vec![self.key.verifier_key().to_owned()] }
    }

    async fn verify_local(&self) -> LogVerificationReport {
        self.verify(AuditLogFiles::Local(LocalAuditLog::open(&self.folder())), None).await
    }

    async fn verify_copy(&self, copy: &Path) -> LogVerificationReport {
        self.verify(AuditLogFiles::Folder(copy.to_owned()), None).await
    }

    async fn verify(&self, files: AuditLogFiles, earlier: Option<&SignedCheckpoint>) -> LogVerificationReport {
        verify(&[self.place(files)], VerifyScope::One, earlier).await.unwrap().remove(0)
    }
}

fn write(path: &Path, content: &[u8]) {
    durable::create_folder(path.parent().unwrap()).unwrap();
    durable::replace(path, content).unwrap();
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut content = std::fs::read(path).unwrap();
    change(&mut content);
    durable::replace(path, &content).unwrap();
}

fn wrong(report: &LogVerificationReport) -> Vec<(LogFindingKind, Option<u64>)> {
    report.findings.iter().map(|finding| (finding.wrong, finding.seq)).collect()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_log_that_was_written_is_whole_and_each_record_of_it_can_be_proven(
        parts in prop::collection::vec(0..400_u64, 1..4), unsigned in 0..300_u64, seed: u64,
    ) {
        block_on(async {
            let mut writer = LoggedBox::new();
            let mut heads = Vec::new();
            for part in &parts {
                writer.append(*part);
                heads.push(writer.sign());
            }
            writer.append(unsigned);
            let (size, copy) = (parts.iter().sum::<u64>(), writer.copy());
            for head in &heads {
                for files in [AuditLogFiles::Local(LocalAuditLog::open(&writer.folder())), AuditLogFiles::Folder(copy.path().to_owned())] {
                    let is_local = files.is_local();
                    let report = writer.verify(files, Some(head)).await;
                    prop_assert_eq!(&report.findings, &[]);
                    prop_assert_eq!((report.size, report.contains), (size, Some(head.size)));
                    prop_assert_eq!(report.unsigned, if is_local { unsigned } else { 0 });
                    prop_assert_eq!(report.summary.records, size + report.unsigned);
                }
            }
            let (head, files) = (heads.last().unwrap(), AuditLogFiles::Folder(copy.path().to_owned()));
            for seq in (0..size).filter(|seq| seq % 13 == seed % 13) {
                let proof = InclusionProof::make(&files, head, seq).await.unwrap();
                prop_assert_eq!(&InclusionProof::parse(&proof.to_bytes()).unwrap(), &proof);
                prop_assert_eq!(proof.check(writer.key.verifier_key()).unwrap().1.seq, seq);
                let other = (seq + 1 + seed % size.max(2)) % size;
                if other != seq {
                    let moved = InclusionProof { index: other, ..proof.clone() };
                    prop_assert!(matches!(moved.check(writer.key.verifier_key()), Err(ProofError::NotIncluded)));
                    let another = record(seq, AuditEvent::TrustReset).to_line();
                    let another = InclusionProof { record: another, ..proof };
                    prop_assert!(matches!(another.check(writer.key.verifier_key()), Err(ProofError::NotIncluded)));
                }
            }
            let behind = InclusionProof::make(&files, head, size).await;
            prop_assert!(behind.is_err());
            Ok(())
        })?;
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is(size in 1..700_u64, at: prop::sample::Index, bit in 0..8_u8) {
        block_on(async {
            let writer = LoggedBox::with(size);
            let copy = writer.copy();
            let tiles = changed(0, size);
            let paths: Vec<_> = tiles.iter().map(TilePath::path).chain([CHECKPOINT.to_owned()]).collect();
            let path = copy.path().join(at.get(&paths));
            let byte = at.index(std::fs::read(&path).unwrap().len());
            change(&path, |content| content[byte] ^= 1 << bit);
            let report = writer.verify_copy(copy.path()).await;
            prop_assert_eq!(report.verdict(), Some(LogFindingKind::Tampered), "{}", path.display());
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_changed_record_is_named() {
    let writer = LoggedBox::with(1000);
    let copy = writer.copy();
    change(&copy.path().join("tile/entries/001"), |bundle| {
        let length = bundle.len() / 256;
        let digit = bundle.iter().skip(length * 44).position(|byte| *byte == b'Z').unwrap() + length * 44 - 1;
        bundle[digit] = if bundle[digit] == b'0' { b'1' } else { b'0' };
    });
    let report = writer.verify_copy(copy.path()).await;
    assert_eq!(
        wrong(&report),
        [(LogFindingKind::Tampered, Some(300)), (LogFindingKind::Tampered, None)],
        "{:?}",
        report.findings
    );
}

#[tokio::test]
async fn a_history_that_was_rewritten_with_all_its_hashes_has_another_root() {
    let writer = LoggedBox::with(600);
    let copy = writer.copy();
    // The same box writes another history of the same length, and the old head is put above it.
    let mut rewritten = LoggedBox::with(599);
    rewritten.append_event(AuditEvent::TrustReset);
    rewritten.log.commit().unwrap();
    rewritten.sign();
    let forged = rewritten.copy();
    write(&forged.path().join(CHECKPOINT), &std::fs::read(copy.path().join(CHECKPOINT)).unwrap());
    let report = writer.verify_copy(forged.path()).await;
    assert_eq!(wrong(&report), [(LogFindingKind::Tampered, None)]);
    assert!(report.findings[0].what.contains("is signed"), "{:?}", report.findings);
    // Signed with the key of another box, it is not even looked at.
    let other = rewritten.copy();
    let report = writer.verify_copy(other.path()).await;
    assert_eq!((wrong(&report), report.summary.records), (vec![(LogFindingKind::Tampered, None)], 0));
}

#[tokio::test]
async fn another_history_under_the_same_key_is_a_fork() {
    let mut writer = LoggedBox::with(300);
    let earlier = writer.sign();
    for (size, found) in [(300, LogFindingKind::Fork), (700, LogFindingKind::Fork), (299, LogFindingKind::Tampered)] {
        // A box that was set back to an image of an earlier day.
        let mut twin = LoggedBox::new();
        twin.key = AuditKey::load_or_create(writer.audit.path(), &device(), &ledge_identity::sealing::Sealer::none())
            .unwrap()
            .0;
        twin.append(10);
        twin.append_event(AuditEvent::TrustReset);
        twin.append(size - 11);
        twin.sign();
        let files = AuditLogFiles::Folder(twin.copy().keep());
        let report = writer.verify(files, Some(&earlier)).await;
        assert_eq!(report.findings.iter().map(|finding| finding.wrong).collect::<Vec<_>>(), [found], "{size}");
    }
    writer.append(5);
    writer.sign();
    let report = writer.verify(AuditLogFiles::Folder(writer.copy().keep()), Some(&earlier)).await;
    assert_eq!((report.findings, report.contains), (vec![], Some(300)));
}

#[tokio::test]
async fn what_is_missing_is_a_gap_and_said_by_its_records() {
    let writer = LoggedBox::with(70_000);
    let copy = writer.copy();
    let without = |path: &'static str| {
        let kept = std::fs::read(copy.path().join(path)).unwrap();
        std::fs::remove_file(copy.path().join(path)).unwrap();
        let path = copy.path().join(path);
        move || write(&path, &kept)
    };
    for (path, seq) in [
        ("tile/entries/000", Some(0)),
        ("tile/entries/100", Some(25_600)),
        ("tile/entries/273.p/112", Some(69_888)),
        ("tile/0/007", None),
        ("tile/1/000", None),
        ("tile/2/000.p/1", None),
    ] {
        let put_back = without(path);
        let report = writer.verify_copy(copy.path()).await;
        assert_eq!(wrong(&report), [(LogFindingKind::Gap, seq)], "{path}");
        put_back();
    }
    // For records that are missing together with their hashes, the level above has the hashes that the root needs.
    let put_back = [without("tile/entries/100"), without("tile/0/100")];
    let report = writer.verify_copy(copy.path()).await;
    assert_eq!(wrong(&report), [(LogFindingKind::Gap, Some(25_600))]);
    let above = without("tile/1/000");
    let report = writer.verify_copy(copy.path()).await;
    assert_eq!(wrong(&report), [(LogFindingKind::Gap, Some(25_600)), (LogFindingKind::Gap, None)]);
    for put_back in &put_back {
        put_back();
    }
    above();
    assert_eq!(writer.verify_copy(copy.path()).await.findings, []);
    std::fs::remove_file(copy.path().join(CHECKPOINT)).unwrap();
    assert_eq!(wrong(&writer.verify_copy(copy.path()).await), [(LogFindingKind::Gap, None)]);
}

#[tokio::test]
async fn a_pruned_log_is_whole_from_its_first_record_on_where_it_says_so() {
    let mut writer = LoggedBox::with(3000);
    let earlier = writer.sign();
    writer.log.prune(1000).unwrap();
    let report = writer.verify_local().await;
    assert_eq!(
        (report.first, wrong(&report)),
        (768, vec![(LogFindingKind::Gap, Some(0))]),
        "nobody says that it was pruned"
    );
    writer.append_event(AuditEvent::RecordsPruned { below: 768, synced: false });
    writer.append(1);
    writer.sign();
    let files = || AuditLogFiles::Local(LocalAuditLog::open(&writer.folder()));
    let report = writer.verify(files(), Some(&earlier)).await;
    assert_eq!((report.first, &report.findings, report.contains), (768, &vec![], Some(3000)));
    let head = writer.log.checkpoint().unwrap();
    for seq in [768, 1023, 1024, 3001] {
        let proof = InclusionProof::make(&files(), head, seq).await.unwrap();
        assert_eq!(proof.check(writer.key.verifier_key()).unwrap().1.seq, seq);
    }
    assert!(matches!(InclusionProof::make(&files(), head, 767).await, Err(ProofError::NotThere { .. })));
}

#[tokio::test]
async fn a_whole_tile_stands_for_a_partial_one_that_was_removed() {
    let mut writer = LoggedBox::with(200);
    let copy = writer.copy();
    writer.append(100);
    writer.sign();
    let later = writer.copy();
    for path in ["tile/entries/000", "tile/0/000"] {
        std::fs::remove_dir_all(copy.path().join(format!("{path}.p"))).unwrap();
        write(&copy.path().join(path), &std::fs::read(later.path().join(path)).unwrap());
    }
    let report = writer.verify_copy(copy.path()).await;
    assert_eq!((report.size, report.findings), (200, vec![]));
}

#[tokio::test]
async fn a_record_in_another_place_than_its_own_and_one_that_is_none_are_found_though_they_are_signed() {
    let mut writer = LoggedBox::with(3);
    writer.log.append(&record(7, AuditEvent::Stopped).to_line()).unwrap();
    writer.log.append(br#"{"v":1,"seq":4,"payload":"a name"}"#).unwrap();
    writer.log.commit().unwrap();
    writer.sign();
    let report = writer.verify_local().await;
    assert_eq!(wrong(&report), [(LogFindingKind::Tampered, Some(3)), (LogFindingKind::Tampered, Some(4))]);
}

#[tokio::test]
async fn records_after_the_head_are_checked_by_their_form_and_a_torn_one_is_on_its_way() {
    let mut writer = LoggedBox::with(250);
    writer.append(10);
    let report = writer.verify_local().await;
    assert_eq!((report.size, report.unsigned, &report.findings), (250, 10, &vec![]));
    let last = writer.folder().join("tile/entries/001");
    change(&last, |bundle| bundle.truncate(bundle.len() - 1));
    let report = writer.verify_local().await;
    assert_eq!((report.unsigned, &report.findings), (9, &vec![]));
    change(&last, |bundle| {
        bundle.clear();
        push_entry(bundle, b"nothing").unwrap();
    });
    let report = writer.verify_local().await;
    assert_eq!(wrong(&report), [(LogFindingKind::Tampered, Some(256))]);
}

#[tokio::test]
async fn a_log_says_what_the_one_before_it_had() {
    let writer = LoggedBox::with(300);
    let head = writer.log.checkpoint().unwrap().clone();
    let (audit, key, folder) = (writer.audit.path().to_owned(), writer.key.verifier_key().to_owned(), writer.folder());
    let LoggedBox { audit: _kept, key: signer, log } = writer;
    let opened = log.begin_another("forked", &device()).unwrap();
    let previous = opened.begun.unwrap().previous.unwrap();
    assert_eq!((previous.origin.as_str(), previous.size), ("ledge.audit/box-1/1", 300));
    let mut log = opened.log;
    let begun = AuditEvent::LogBegun { cause: "forked".into(), previous: Some(previous) };
    log.append(&record(0, begun).to_line()).unwrap();
    log.commit().unwrap();
    log.sign(&signer).unwrap();
    let place = |generation| {
        let files = AuditLogFiles::Local(LocalAuditLog::open(&log_folder(&audit, generation)));
        LogToVerify { files, generation: Some(generation), keys: vec![key.clone()] }
    };
    let both = [place(1), place(2)];
    let check = async |places: &[LogToVerify]| {
        let reports = verify(places, VerifyScope::All, Some(&head)).await.unwrap();
        reports.iter().map(wrong).collect::<Vec<_>>()
    };
    assert_eq!(check(&both).await, [vec![], vec![]]);
    // Without the first log, both the records that the second one states and the head that was known before are
    // missing.
    assert_eq!(check(&both[1..]).await, [[(LogFindingKind::Gap, None), (LogFindingKind::Tampered, None)]]);
    // The first one as it was at an earlier time.
    let shorter = signer.sign(&origin(&device(), 1), 0, tlog_tiles::EMPTY_HASH).unwrap();
    write(&folder.join(CHECKPOINT), &shorter.note);
    assert_eq!(
        check(&both).await,
        [vec![(LogFindingKind::Tampered, Some(0)), (LogFindingKind::Tampered, Some(0))], vec![]]
    );
    // One log in the place of another.
    let second = std::fs::read(log_folder(&audit, 2).join(CHECKPOINT)).unwrap();
    write(&folder.join(CHECKPOINT), &second);
    assert_eq!(check(&both).await[0], [(LogFindingKind::Tampered, None)]);
}

#[test]
fn a_tile_has_what_the_tree_has_at_its_place() {
    use crate::files::tile_of;
    for size in [1, 255, 256, 257, 65_535, 65_536, 70_000] {
        for tile in changed(0, size) {
            assert_eq!(tile_of(tile.kind, tile.index, size), tile, "{size}");
        }
        assert_eq!(tile_of(TileKind::Entries, size.div_ceil(TILE_WIDTH), size).width, 0);
    }
}
