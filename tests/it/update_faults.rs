//! Cuts an update of the store off after each of its calls, by `kill -9` and by a power cut. The running version stays
//! whole, the update goes on, and at most 1 MiB is fetched again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use ledge::identity::sealing::{CHUNK_BYTES, EncryptedFileHeader, MASTER_KEY_BYTES, OVERHEAD_BYTES, Sealer};
use ledge::updates::artifact::{Artifact, FileName};
use ledge::updates::config::RepositoryAddress;
use ledge::updates::download::{DownloadError, DownloadLimits, fetch};
use ledge::updates::source::RepositorySource;
use ledge::updates::state::InstalledRelease;
use ledge::updates::store::{StoreError, UpdateStore};
use ledge::updates::trust::TufTarget;

use crate::feature_faults::points::{CutOff, Points, Recording};
use crate::feature_faults::seed::Random;
use crate::feature_faults::shim::Shim;

/// The variable with the child's folders.
const FOLDER: &str = "UPDATE_FAULTS";

/// The files of each release by name, with what makes their content and their lengths. Each keeps one of the one
/// before.
const RELEASES: [&[(&str, u8, usize)]; 3] = [
    &[("model.onnx", 0, 90_000), ("labels.txt", 9, 4_000)],
    &[("model.onnx", 1, 90_001), ("labels.txt", 9, 4_000)],
    &[("model.onnx", 2, 2_700_000), ("weights.bin", 3, 1_048_577), ("model.toml", 4, 200), ("labels.txt", 9, 4_000)],
];

/// The file that marks a folder with encrypted models.
const SEALED: &str = "sealed";

/// The store in a folder, encrypted or not.
fn open(folder: &Path) -> Result<UpdateStore, StoreError> {
    let sealer =
        if folder.join(SEALED).exists() { Sealer::with_keys(&[[7; MASTER_KEY_BYTES]]) } else { Sealer::none() };
    UpdateStore::open_with(&folder.join("updates"), &sealer)
}

fn content(of: u8, length: usize) -> Vec<u8> {
    (0..length).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ of).collect()
}

fn sha256(content: &[u8]) -> String {
    let digits: Vec<_> = digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

fn subject() -> Artifact {
    "models/minilm".parse().unwrap()
}

fn release(number: usize) -> InstalledRelease {
    InstalledRelease { version: (number + 1).to_string().parse().unwrap(), digest: sha256(&number.to_le_bytes()) }
}

fn targets(number: usize) -> Vec<(FileName, TufTarget)> {
    let target = |(name, of, length): &(&str, u8, usize)| {
        let sha256 = sha256(&content(*of, *length));
        let path = format!("models/minilm/{}/{name}", number + 1);
        let target = TufTarget { path, length: *length as u64, location: sha256.clone(), sha256, custom: None };
        (name.parse().unwrap(), target)
    };
    RELEASES[number].iter().map(target).collect()
}

/// A repository with all releases in `folder/repository`, and a store in `folder/updates`.
fn publish(folder: &Path) {
    for (of, length) in RELEASES.iter().flat_map(|files| files.iter()).map(|(_, of, length)| (*of, *length)) {
        let content = content(of, length);
        crate::daemon::write(&folder.join("repository/targets").join(sha256(&content)), &content);
    }
    std::fs::create_dir(folder.join("updates")).unwrap();
}

/// Fetches a release, puts it together, and keeps it and the one before. Returns the bytes that came.
async fn update(folder: &Path, number: usize, cancelled_once: bool) -> Result<u64, DownloadError> {
    let store = open(folder)?;
    let source = RepositorySource::new(&RepositoryAddress::Folder(folder.join("repository")), None);
    let limits =
        DownloadLimits { max_bytes_per_s: 0, min_free_bytes: 0, stall: Duration::from_mins(1), min_bytes_per_s: 0 };
    let (mut came, mut cancelled) = (0, !cancelled_once);
    let targets = targets(number);
    for (_, target) in &targets {
        loop {
            let progress = |bytes| {
                came += bytes;
                if cancelled || came < 700_000 {
                    return ControlFlow::Continue(());
                }
                cancelled = true;
                ControlFlow::Break(())
            };
            match fetch(&store, &source, target, &limits, progress).await.map_err(|failed| failed.error) {
                Err(DownloadError::Cancelled) => {}
                other => break other?,
            }
        }
    }
    let files: Vec<_> = targets.into_iter().map(|(name, target)| (name, target.sha256)).collect();
    store.assemble(&subject(), &release(number), &files)?;
    assert!(store.verify_release(&subject(), &release(number), &|| {})?);
    let kept = (number.saturating_sub(1)..=number).map(release).collect();
    store.collect(&BTreeMap::from([(subject(), kept)]), &BTreeSet::new())?;
    Ok(came)
}

fn updated(folder: &Path, number: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(update(folder, number, false)).unwrap()
}

/// The child of the tests here. Run by itself it makes its own folders.
#[test]
#[ignore = "the tests of this file run it as a process of its own"]
fn the_last_update() {
    let own = tempfile::tempdir().unwrap();
    let folder = std::env::var_os(FOLDER).map_or_else(
        || {
            publish(own.path());
            own.path().to_owned()
        },
        PathBuf::from,
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Err(error) = runtime.block_on(update(&folder, 2, true)) {
        panic!("{:?}: {error}", error.cause());
    }
}

fn child(folder: &Path, variables: &[(&str, PathBuf)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["update_faults::the_last_update", "--exact", "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().unwrap()
}

/// Every blob is what its name says, and every release that is kept is whole, or not there if it is the new one.
fn assert_whole(folder: &Path, what: &str) {
    for entry in std::fs::read_dir(folder.join("updates/blobs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let content = std::fs::read(&path).unwrap();
            // Of an encrypted one only the release can show that it is whole.
            match EncryptedFileHeader::parse(&content) {
                None => assert_eq!(sha256(&content), name, "{what}"),
                Some(header) => assert_eq!(content.len() as u64, header.sealed_length(), "{what}"),
            }
        }
    }
    let store = open(folder).unwrap();
    assert!(store.verify_release(&subject(), &release(1), &|| {}).unwrap(), "{what}: what ran is damaged");
    let new = store.release_folder(&subject(), &release(2));
    assert!(
        !new.exists() || store.verify_release(&subject(), &release(2), &|| {}).unwrap(),
        "{what}: the new one is damaged"
    );
}

/// The bytes of the last release that are not there at `point`.
fn missing(points: &Points, folder: &Path, point: usize) -> u64 {
    let lengths = points.lengths(point);
    let here = |target: &TufTarget| {
        let blob = folder.join("updates/blobs").join(&target.sha256);
        let found = lengths.get(&blob).or_else(|| lengths.get(&blob.with_extension("part")));
        let found = found.copied().unwrap_or(0);
        if folder.join(SEALED).exists() { plain_length(found) } else { found }
    };
    targets(2).iter().map(|(_, target)| target.length - here(target)).sum()
}

/// The number of plain bytes in an encrypted file of this many bytes.
fn plain_length(sealed: u64) -> u64 {
    let chunks = sealed.saturating_sub(EncryptedFileHeader::BYTES as u64);
    let lengths = (CHUNK_BYTES + OVERHEAD_BYTES) as u64;
    chunks / lengths * CHUNK_BYTES as u64 + (chunks % lengths).saturating_sub(OVERHEAD_BYTES as u64)
}

fn cut_off_at(chosen: impl Fn(&Points) -> Vec<usize>, how: CutOff) {
    cut_off(chosen, how, false);
}

fn cut_off(chosen: impl Fn(&Points) -> Vec<usize>, how: CutOff, sealed: bool) {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Random::new(&format!("{how:?}")));
    let folder = folder.path().canonicalize().unwrap();
    publish(&folder);
    if sealed {
        crate::daemon::write(&folder.join(SEALED), b"");
    }
    for number in [0, 1] {
        updated(&folder, number);
    }
    let recording = Recording::new(&folder.join("updates"));
    let ran = child(&folder, &recording.variables());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let points = recording.points();
    let chosen = chosen(&points);
    println!("{} of {} points", chosen.len(), points.count());
    let mut most = 0;
    for point in chosen {
        let what = format!("{how:?} at point {point}");
        points.leave(point, how, &mut random);
        assert_whole(&folder, &what);
        let (came, missing) = (updated(&folder, 2), missing(&points, &folder, point));
        assert!(came >= missing && came - missing <= 1 << 20, "{what}: {came} bytes came, {missing} were missing");
        most = most.max(came - missing);
        assert_whole(&folder, &what);
        let left = std::fs::read_dir(folder.join("updates/blobs")).unwrap().count();
        assert_eq!(left, 5, "{what}: there is garbage left");
    }
    println!("at most {most} bytes were fetched again");
}

#[test]
fn a_killed_update_leaves_what_ran_and_goes_on() {
    cut_off_at(|points| points.spread(12), CutOff::Kill);
}

#[test]
fn an_update_without_power_leaves_what_ran_and_goes_on() {
    cut_off_at(|points| points.spread(12), CutOff::Power);
}

#[test]
fn a_sealed_update_that_is_killed_goes_on() {
    cut_off(|points| points.spread(12), CutOff::Kill, true);
}

#[test]
fn a_sealed_update_without_power_goes_on() {
    cut_off(|points| points.spread(12), CutOff::Power, true);
}

#[test]
#[ignore = "every point: make soak"]
fn an_update_that_is_killed_anywhere_goes_on() {
    cut_off_at(Points::all, CutOff::Kill);
}

#[test]
#[ignore = "every point, three times: make soak"]
fn an_update_whose_power_is_cut_anywhere_goes_on() {
    let thrice = |points: &Points| (0..3).flat_map(|_| points.all()).collect();
    cut_off_at(thrice, CutOff::Power);
}

#[test]
fn a_full_disk_is_told_and_keeps_what_came() {
    let (folder, shim) = (tempfile::tempdir().unwrap(), Shim::build());
    let folder = folder.path().canonicalize().unwrap();
    publish(&folder);
    let budget = shim.file("budget");
    std::fs::File::create(&budget).unwrap();
    let variables =
        [("LD_PRELOAD", shim.library()), ("FAULT_FOLDER", folder.join("updates")), ("FAULT_BUDGET", budget.clone())];
    crate::daemon::write(&budget, &2_000_000_i64.to_ne_bytes());
    let ran = child(&folder, &variables);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("Disk: no room on the disk for"), "{said}");
    let length: u64 = RELEASES[2].iter().map(|(_, _, length)| *length as u64).sum();
    let came = updated(&folder, 2);
    assert!(came <= length - 2_000_000 + (1 << 20), "{came} bytes came once there was room");
}
