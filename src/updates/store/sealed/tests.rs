use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::identity::sealing::{CHUNK, KEY, SealedFolder, Sealer};
use crate::updates::state::Installed;
use crate::updates::subject::{FileName, Subject};

/// What is looked for on the disk.
const CANARY: &[u8] = b"the weights of a model, which are nobody's business";

fn old() -> Sealer {
    Sealer::with_keys(&[[1; KEY]])
}

fn new() -> Sealer {
    Sealer::with_keys(&[[2; KEY], [1; KEY]])
}

fn content(length: usize) -> Vec<u8> {
    CANARY.iter().copied().cycle().take(length).collect()
}

fn sha256(content: &[u8]) -> String {
    super::super::hex(&aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, content))
}

fn release(version: u64) -> Installed {
    Installed { version: version.to_string().parse().unwrap(), digest: sha256(&version.to_le_bytes()) }
}

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

fn put(store: &BlobStore, content: &[u8]) -> String {
    let sha256 = sha256(content);
    let mut part = store.sealed_part(&sha256, content.len() as u64).unwrap();
    part.append(&content[usize::try_from(part.length()).unwrap()..]).unwrap();
    assert!(part.finish().unwrap());
    sha256
}

fn assemble(store: &BlobStore, subject: &Subject, version: u64, files: &[(&str, &[u8])]) -> PathBuf {
    let file = |(name, content): &(&str, &[u8])| (name.parse::<FileName>().unwrap(), put(store, content));
    let files: Vec<_> = files.iter().map(file).collect();
    store.assemble(subject, &release(version), &files).unwrap()
}

/// The files below a folder that hold the canary.
fn plain(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(plain(&path));
        } else if fs::read(&path).unwrap().windows(CANARY.len()).any(|window| window == CANARY) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn opened(folder: &Path, sealer: &Sealer, file: &str) -> Vec<u8> {
    let folder = SealedFolder::find(folder, SealPurpose::Model, sealer).unwrap().unwrap();
    fs::read(folder.open().unwrap().path().join(file)).unwrap()
}

#[test]
fn a_sealed_release_is_whole_and_says_nothing_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::open_with(folder.path(), &old()).unwrap();
    let model = subject("models/minilm");
    let weights = content(3 * CHUNK + 7);
    let files: [(&str, &[u8]); 3] = [("model.onnx", &weights), ("labels.txt", &content(100)), ("empty.txt", b"")];
    let path = assemble(&store, &model, 1, &files);
    assert!(store.verify_release(&model, &release(1), &|| {}).unwrap());
    assert_eq!(plain(folder.path()), [""; 0]);
    assert!(opened(&path, &old(), "model.onnx") == weights);
    assert_eq!(opened(&path, &old(), "empty.txt"), b"");
    assert_eq!(survey(folder.path()).unwrap().0, BTreeMap::from([(old().current(), 3)]));
    drop(store);

    // Without the key it is not taken for damaged: it is as good as before once the key is back.
    let store = BlobStore::open(folder.path()).unwrap();
    let error = store.verify_release(&model, &release(1), &|| {}).unwrap_err();
    assert!(matches!(error, StoreError::Sealed { .. }) && error.to_string().contains("master_key_file"), "{error}");
    store.discard(&subject("models/other"), &release(1), &|| {}).unwrap();
    drop(store);

    let store = BlobStore::open_with(folder.path(), &new()).unwrap();
    let (file, blob) = (path.join("model.onnx"), store.blob(&sha256(&weights)).unwrap());
    let mut bytes = fs::read(&file).unwrap();
    bytes[CHUNK + 500] ^= 1;
    fs::remove_file(&blob).unwrap();
    durable::replace(&file, &bytes).unwrap();
    assert!(!store.verify_release(&model, &release(1), &|| {}).unwrap());
}

#[test]
fn what_was_plain_or_under_an_old_key_is_sealed_anew_and_settings_and_runtimes_stay_plain() {
    let folder = tempfile::tempdir().unwrap();
    let (model, runtime) = (subject("models/minilm"), subject("runtimes/onnxruntime"));
    let weights = content(CHUNK + 7);
    let store = BlobStore::open(folder.path()).unwrap();
    let paths = [1, 2].map(|version| {
        let notes = format!("version {version}").into_bytes();
        assemble(&store, &model, version, &[("model.onnx", &weights), ("notes.txt", &notes)])
    });
    let library = assemble(&store, &runtime, 1, &[("lib.so", b"public")]);
    assert_eq!(store.reseal(&|| false), Ok(Resealed::default()));
    drop(store);

    let go_on = || false;
    for (sealer, expected) in [(old(), Resealed { plain: 3, old: 0 }), (new(), Resealed { plain: 0, old: 3 })] {
        let store = BlobStore::open_with(folder.path(), &sealer).unwrap();
        assert_eq!(store.reseal(&|| true), Ok(Resealed::default()));
        assert_eq!(store.reseal(&go_on), Ok(expected));
        assert_eq!(store.reseal(&go_on), Ok(Resealed::default()));
        assert_eq!(survey(folder.path()).unwrap().0, BTreeMap::from([(sealer.current(), 3)]));
        assert_eq!(plain(folder.path()), [""; 0]);
        let inode = |path: &PathBuf| path.join("model.onnx").metadata().unwrap().ino();
        assert_eq!(inode(&paths[0]), inode(&paths[1]), "releases share what they have in common");
        for version in [1, 2] {
            assert!(store.verify_release(&model, &release(version), &|| {}).unwrap());
        }
        assert!(opened(&paths[1], &sealer, "model.onnx") == weights);
        assert_eq!(fs::read(library.join("lib.so")).unwrap(), b"public");
        let hidden = |path: &PathBuf| entries(path).unwrap().len();
        assert_eq!(hidden(&paths[0]), 3, "its two files and their list");
        // What came sealed with a model is plain for a runtime.
        let path = assemble(&store, &runtime, 2, &[("lib.so", &weights)]);
        assert!(fs::read(path.join("lib.so")).unwrap() == weights);
        assert!(store.verify_release(&runtime, &release(2), &|| {}).unwrap());
        let keep = BTreeMap::from([(model.clone(), vec![release(1), release(2)]), (runtime.clone(), vec![release(1)])]);
        store.collect(&keep, &BTreeSet::new()).unwrap();
    }
}

#[test]
fn one_file_under_a_lost_key_keeps_no_other_from_being_sealed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Sealer::with_keys(&[[9; KEY]]);
    let (first, second) = (subject("models/a"), subject("models/b"));
    let store = BlobStore::open_with(folder.path(), &lost).unwrap();
    assemble(&store, &first, 1, &[("model.onnx", b"a")]);
    drop(store);
    let store = BlobStore::open(folder.path()).unwrap();
    assemble(&store, &second, 1, &[("model.onnx", b"b")]);
    drop(store);
    let store = BlobStore::open_with(folder.path(), &old()).unwrap();
    let error = store.reseal(&|| false).unwrap_err();
    assert!(error.contains("does not have"), "{error}");
    assert_eq!(survey(folder.path()).unwrap().0, BTreeMap::from([(lost.current(), 1), (old().current(), 1)]));
}

#[test]
fn a_part_that_was_begun_plain_is_begun_again_and_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let weights = content(2 * CHUNK + 1);
    let (name, length) = (sha256(&weights), weights.len() as u64);
    for (before, after) in [(Sealer::none(), old()), (old(), Sealer::none())] {
        let store = BlobStore::open_with(folder.path(), &before).unwrap();
        let mut part = store.sealed_part(&name, length).unwrap();
        part.append(&weights[..=CHUNK]).unwrap();
        part.settle().unwrap();
        drop((part, store));
        let store = BlobStore::open_with(folder.path(), &after).unwrap();
        let part = store.sealed_part(&name, length).unwrap();
        assert_eq!(part.length(), 0);
        assert!(!after.is_on() || plain(folder.path()).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A process that is killed loses what is not a whole chunk, one that ends in order nothing.
    #[test]
    fn a_sealed_part_goes_on_wherever_it_was_left(
        length in 0..4 * CHUNK,
        steps in proptest::collection::vec((1..CHUNK, any::<bool>(), any::<bool>()), 0..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store = BlobStore::open_with(folder.path(), &old()).unwrap();
        let weights = content(length);
        let name = sha256(&weights);
        let mut part = store.sealed_part(&name, length as u64).unwrap();
        for (bytes, leave, orderly) in steps {
            let here = usize::try_from(part.length()).unwrap();
            part.append(&weights[here..length.min(here + bytes)]).unwrap();
            let here = part.length();
            if leave {
                if orderly {
                    part.settle().unwrap();
                }
                drop(part);
                part = store.sealed_part(&name, length as u64).unwrap();
                let lost = here - part.length();
                prop_assert!(lost < CHUNK as u64 && (!orderly || lost == 0), "{} lost", lost);
            }
        }
        let here = usize::try_from(part.length()).unwrap();
        part.append(&weights[here..]).unwrap();
        prop_assert!(part.finish().unwrap());
        prop_assert!(length < CANARY.len() || plain(folder.path()).is_empty());
        let blob = store.blob(&name).unwrap();
        prop_assert_eq!(hash(&blob, &old(), &|| {}).unwrap(), name);
    }
}
