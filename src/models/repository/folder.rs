//! A model's folder on disk: `<model>/<version>/model.{onnx,xml,tflite}`, perhaps `model.float.*` next to it, and
//! `<model>/model.toml`.
//!
//! Finds and checks the files; loads nothing. A process of models reads the model files, and this one only hashes them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ledge_base::contained;
use ledge_base::names::{InvalidName, ModelName, ModelVersion};
use ledge_base::toml_check::ConfigMistake;
use ledge_engine::backend::{ModelFiles, ModelFormat};
use ledge_engine::files::{ExternalDataFile, ModelFileFacts};
use ledge_engine::pipeline::kind::ChainModel;
use ledge_engine::pipeline::quantization::Quantization;
use ledge_isolation::ModelReadError;

use super::model_config::ModelConfig;
use super::reader::ModelReader;
pub use super::version_files::VersionFile;
use super::version_files::{self, FileMark};

/// Reason why a model's folder cannot be used. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum ModelFolderError {
    #[error("{} cannot be read: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// `model.toml` has mistakes.
    #[error("{}", mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config { mistakes: Vec<ConfigMistake> },
    /// The model's folder has no version that its config selects.
    #[error("{} has no version folder: {reason}", path.display())]
    NoVersion { path: PathBuf, reason: String },
    /// The version's folder holds no model, or more than one.
    #[error("{} {reason}", path.display())]
    NoModel { path: PathBuf, reason: String },
    /// No process could be started to read a model file.
    #[error("{} {reason}", path.display())]
    NoProcess { path: PathBuf, reason: String },
    /// The process that read a model file ended, and not because of that file as far as is known.
    #[error("{} {reason}", path.display())]
    Interrupted { path: PathBuf, reason: String },
    /// A model file is of another format than its name says.
    #[error("{} {reason}", path.display())]
    BadFile { path: PathBuf, reason: String },
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> ModelFolderError + '_ {
    move |error| ModelFolderError::Read { path: path.to_owned(), error }
}

/// A folder of a repository that is not a model, because of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisnamedFolder {
    pub path: PathBuf,
    pub reason: InvalidName,
}

impl MisnamedFolder {
    /// Its name, with replacements for bytes that are not UTF-8.
    pub fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }
}

impl fmt::Display for MisnamedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, reason } = self;
        write!(f, "{reason}: rename the folder {}", path.display())?;
        ModelName::similar_to(&self.name()).map_or(Ok(()), |similar| write!(f, ", for example to {similar}"))
    }
}

/// The models of a repository: its folders with a valid name. Others are returned separately, for a warning, except
/// hidden ones, such as `.git`, and `lost+found` of a file system.
pub fn models(repository: &Path) -> Result<(Vec<ModelName>, Vec<MisnamedFolder>), ModelFolderError> {
    let (mut models, mut misnamed) = (Vec::new(), Vec::new());
    for name in folders(repository)?.into_iter().filter(|name| !name.starts_with('.') && name != "lost+found") {
        match name.parse() {
            Ok(model) => models.push(model),
            Err(reason) => misnamed.push(MisnamedFolder { path: repository.join(name), reason }),
        }
    }
    models.sort_unstable();
    misnamed.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok((models, misnamed))
}

/// The versions of a model that its config selects; at least one.
pub fn selected_versions(model: &Path, config: &ModelConfig) -> Result<Vec<ModelVersion>, ModelFolderError> {
    let (versions, mut strange) = versions(model)?;
    let selected = config.version_policy.select(&versions);
    if !selected.is_empty() {
        return Ok(selected);
    }

    let loose: Vec<_> = model_files(model)?.iter().map(|file| file.display().to_string()).collect();
    strange.sort_unstable();
    let expected = "expected one named by a positive integer, such as 1";
    let reason = match (loose.as_slice(), strange.as_slice()) {
        ([], []) => expected.to_owned(),
        ([], strange) => format!("{expected}, and found {}", strange.join(", ")),
        (loose, _) => format!("move {} into {}", loose.join(", "), model.join("1").display()),
    };
    Err(ModelFolderError::NoVersion { path: model.to_owned(), reason })
}

/// The versions in a model's folder, ascending. Folders that are not versions are returned separately.
pub fn versions(model: &Path) -> Result<(Vec<ModelVersion>, Vec<String>), ModelFolderError> {
    let (mut versions, mut strange) = (Vec::new(), Vec::new());
    for name in folders(model)? {
        match name.parse() {
            Ok(version) => versions.push(version),
            Err(_) => strange.push(name),
        }
    }
    versions.sort_unstable();
    Ok((versions, strange))
}

fn folders(path: &Path) -> Result<Vec<String>, ModelFolderError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read_error(path))? {
        let entry = entry.map_err(read_error(path))?;
        // Follows symbolic links: a signed model is a link into the update store.
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// The model config in a model's folder, and its text; the default without a file.
pub fn model_config(model: &Path) -> Result<(ModelConfig, String), ModelFolderError> {
    let path = model.join("model.toml");
    let text = match contained::read_text(model, Path::new("model.toml"), contained::CONFIG_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((ModelConfig::default(), String::new())),
        Err(error) => return Err(ModelFolderError::Read { path, error }),
    };
    let source = path.display().to_string();
    let config = ModelConfig::parse(&source, &text).map_err(|mistakes| ModelFolderError::Config { mistakes })?;
    Ok((config, text))
}

/// The stem of the file that is run when every runtime answers golden inputs wrong with the model: its float original.
const FALLBACK_STEM: &str = "model.float";

/// One version, read and checked.
#[derive(Debug)]
pub struct VersionFolder {
    /// The model that a runtime loads.
    pub model: VersionModel,
    /// The model that is loaded when golden inputs are answered wrong with `model`.
    pub fallback: Option<VersionModel>,
    /// The models of a chain, in place of `model`, which is the first of them.
    pub parts: Vec<(&'static str, VersionModel)>,
    /// BLAKE3 of every file's name and content, in hexadecimal: other weights, another digest.
    pub digest: String,
    /// The files, in the order of the digest.
    pub files: Vec<VersionFile>,
    /// Keeps the process that read the files.
    _reader: ModelReader,
}

/// One model of a version.
#[derive(Debug, Clone)]
pub struct VersionModel {
    pub files: ModelFiles,
    /// Values of the integers of its inputs and outputs according to its files, by their names.
    pub quantization: HashMap<String, Quantization>,
    /// The metadata of an ONNX file.
    pub metadata: HashMap<String, String>,
}

/// Reads and checks the files of one version: its model, or those of the chain that `parts` lists.
pub fn version(folder: &Path, parts: &[ChainModel], reader: ModelReader) -> Result<VersionFolder, ModelFolderError> {
    if !parts.is_empty() {
        return chain(folder, parts, reader);
    }
    let found = find_models(folder)?;
    let mut hashed = HashedFiles::default();
    let model = read_model(folder, &found.model, "", &reader, &mut hashed)?;
    let fallback = found.fallback.map(|name| read_model(folder, &name, "float ", &reader, &mut hashed)).transpose()?;
    let HashedFiles { hasher, files } = hashed;
    let digest = hasher.finalize().to_hex().to_string();
    Ok(VersionFolder { model, fallback, parts: Vec::new(), digest, files, _reader: reader })
}

/// True when the folder of a version has the same files as `before`, with the digest `digest`. The files are not
/// parsed.
pub fn is_unchanged(
    folder: &Path,
    parts: &[ChainModel],
    before: &[VersionFile],
    digest: &str,
) -> Result<bool, ModelFolderError> {
    let models = if parts.is_empty() {
        let ModelFileNames { model, fallback } = find_models(folder)?;
        std::iter::once(model).chain(fallback).collect()
    } else {
        let found = model_files(folder)?;
        let of_part =
            |part: &ChainModel| found.iter().filter(|file| is_named(file, part.name)).cloned().collect::<Vec<_>>();
        parts.iter().flat_map(of_part).collect::<Vec<_>>()
    };
    let hash = |hasher: &mut blake3::Hasher, file: &VersionFile| {
        let (open, length) = contained::open_at_most(folder, Path::new(&file.path), contained::MODEL_MAX)?;
        hash_file(hasher, &file.hashed_as, &open, length)
    };
    version_files::are_unchanged(folder, &models, (before, digest), hash).map_err(read_error(folder))
}

/// The files of a version that were hashed so far.
#[derive(Default)]
struct HashedFiles {
    hasher: blake3::Hasher,
    files: Vec<VersionFile>,
}

impl HashedFiles {
    /// Notes a file that is about to be hashed.
    fn begin(&mut self, path: &Path, hashed_as: &str, is_model: bool, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        self.files.push(VersionFile {
            path: path.to_string_lossy().into_owned(),
            hashed_as: hashed_as.to_owned(),
            is_model,
            bytes: metadata.len(),
            mark: FileMark::settled(&metadata),
        });
        Ok(())
    }
}

/// Reads and checks the models of a chain.
fn chain(folder: &Path, parts: &[ChainModel], reader: ModelReader) -> Result<VersionFolder, ModelFolderError> {
    let found = model_files(folder)?;
    let (mut hashed, mut read) = (HashedFiles::default(), Vec::new());
    for part in parts {
        let of_part: Vec<_> = found.iter().filter(|file| is_named(file, part.name)).collect();
        match of_part.as_slice() {
            [file] => {
                let model = read_model(folder, file, &format!("{} ", part.name), &reader, &mut hashed)?;
                read.push((part.name, model));
            }
            [] if part.is_optional => {}
            several => {
                let many = if several.is_empty() { "holds no" } else { "holds several models" };
                let reason = format!("{many} {}.onnx, {}.xml or {}.tflite", part.name, part.name, part.name);
                return Err(ModelFolderError::NoModel { path: folder.to_owned(), reason });
            }
        }
    }
    let first =
        || ModelFolderError::NoModel { path: folder.to_owned(), reason: "holds no model of the chain".to_owned() };
    let model = read.first().map(|(_, model)| model.clone()).ok_or_else(first)?;
    let HashedFiles { hasher, files } = hashed;
    let digest = hasher.finalize().to_hex().to_string();
    Ok(VersionFolder { model, fallback: None, parts: read, digest, files, _reader: reader })
}

/// Reads and checks one model and the files that belong to it. `role` distinguishes them from the files of the other
/// model in the digest.
fn read_model(
    folder: &Path,
    name: &Path,
    role: &str,
    reader: &ModelReader,
    hashed: &mut HashedFiles,
) -> Result<VersionModel, ModelFolderError> {
    let model = folder.join(name);
    let bad = |reason: String| ModelFolderError::BadFile { path: model.clone(), reason };
    let format = format_of(name);

    let (file, length) = contained::open_at_most(folder, name, contained::MODEL_MAX).map_err(read_error(&model))?;
    if length == 0 {
        return Err(bad("is empty".to_owned()));
    }
    let hashed_as = format!("{role}model");
    hashed.begin(name, &hashed_as, true, &file).map_err(read_error(&model))?;
    hash_file(&mut hashed.hasher, &hashed_as, &file, length).map_err(read_error(&model))?;
    let facts = reader.read(format, &file).map_err(|error| match error {
        ModelReadError::NoProcess(_) => ModelFolderError::NoProcess { path: model.clone(), reason: error.to_string() },
        ModelReadError::Interrupted { .. } => {
            ModelFolderError::Interrupted { path: model.clone(), reason: error.to_string() }
        }
        ModelReadError::Refused(_) | ModelReadError::Crashed(_) => bad(error.to_string()),
    })?;

    let mut hash = |hashed_as: &str, name: &Path| {
        let path = folder.join(name);
        let (file, length) = contained::open_at_most(folder, name, contained::MODEL_MAX).map_err(read_error(&path))?;
        let hashed_as = format!("{role}{hashed_as}");
        hashed.begin(name, &hashed_as, false, &file).map_err(read_error(&path))?;
        hash_file(&mut hashed.hasher, &hashed_as, &file, length).map_err(read_error(&path))?;
        Ok(length)
    };
    let weights = (format == ModelFormat::OpenVinoIr).then(|| name.with_extension("bin"));
    if let Some(weights) = &weights {
        hash("weights", weights)?;
    }
    let ModelFileFacts { external, port_names, dangers, class_maps, quantization, metadata } = facts;
    for ExternalDataFile { path, bytes } in &external {
        let length = hash(&path.file_name().unwrap_or_default().to_string_lossy(), path)?;
        if length < *bytes {
            let path = path.display();
            return Err(bad(format!("refers to {bytes} bytes of external data in {path}, which has only {length}")));
        }
    }
    let external = external.into_iter().map(|file| file.path).collect();
    let weights = weights.map(|weights| folder.join(weights));
    let files = ModelFiles { format, model, weights, external, port_names, dangers, class_maps };
    let (quantization, metadata) = (quantization.into_iter().collect(), metadata.into_iter().collect());
    Ok(VersionModel { files, quantization, metadata })
}

fn format_of(name: &Path) -> ModelFormat {
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("xml") => ModelFormat::OpenVinoIr,
        Some("tflite") => ModelFormat::TfLite,
        _ => ModelFormat::Onnx,
    }
}

/// The names of the inputs of the model in a version's folder, where the format shows them without a runtime.
pub fn input_names(folder: &Path, reader: &ModelReader) -> Result<Option<Vec<String>>, ModelFolderError> {
    let name = find_models(folder)?.model;
    let (format, path) = (format_of(&name), folder.join(&name));
    if format != ModelFormat::Onnx {
        return Ok(None);
    }
    let (file, _) = contained::open_at_most(folder, &name, contained::MODEL_MAX).map_err(read_error(&path))?;
    let facts = reader.read(format, &file);
    let facts = facts.map_err(|error| ModelFolderError::BadFile { path, reason: error.to_string() })?;
    Ok(facts.port_names.map(|names| names.inputs))
}

/// Hashes an open file. Does not use its position, which a process that has the file too may change.
fn hash_file(hasher: &mut blake3::Hasher, name: &str, file: &File, length: u64) -> io::Result<()> {
    /// The bytes that are read at a time.
    const PIECE: u64 = 1 << 20;
    hash_begin(hasher, name, length);
    let mut piece = Vec::new();
    let mut at = 0;
    while at < length {
        piece.resize(usize::try_from(PIECE.min(length - at)).unwrap_or(usize::MAX), 0);
        file.read_exact_at(&mut piece, at)?;
        hasher.update(&piece);
        at += piece.len() as u64;
    }
    Ok(())
}

/// Hashes everything before the content: lengths first, so that no two lists of files give the same bytes.
fn hash_begin(hasher: &mut blake3::Hasher, name: &str, length: u64) {
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(&length.to_le_bytes());
}

/// The files of a version that are models, by their names.
struct ModelFileNames {
    model: PathBuf,
    fallback: Option<PathBuf>,
}

fn is_named(path: &Path, stem: &str) -> bool {
    path.file_stem().is_some_and(|found| found == stem)
}

/// The files of a folder with the ending of a model, by their names.
fn model_files(folder: &Path) -> Result<Vec<PathBuf>, ModelFolderError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read_error(folder))? {
        let name = PathBuf::from(entry.map_err(read_error(folder))?.file_name());
        let known = matches!(name.extension().and_then(|e| e.to_str()), Some("onnx" | "xml" | "tflite"));
        if known && folder.join(&name).is_file() {
            found.push(name);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The model file of a version: `model.*`, or the only file with a known ending, as OVMS has it. `model.float.*` is its
/// fallback, unless there is no other.
fn find_models(folder: &Path) -> Result<ModelFileNames, ModelFolderError> {
    let found = model_files(folder)?;
    let (mut fallbacks, mut others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|path| is_named(path, FALLBACK_STEM));
    if others.is_empty() {
        std::mem::swap(&mut fallbacks, &mut others);
    }

    let named: Vec<_> = others.iter().filter(|path| is_named(path, "model")).collect();
    let several = |found: &[PathBuf]| {
        let listed = found.iter().filter_map(|path| path.file_name()?.to_str()).collect::<Vec<_>>().join(", ");
        ModelFolderError::NoModel { path: folder.to_owned(), reason: format!("holds several models: {listed}") }
    };
    if fallbacks.len() > 1 {
        return Err(several(&fallbacks));
    }

    let fallback = fallbacks.pop();
    match (named.as_slice(), others.as_slice()) {
        ([only], _) => Ok(ModelFileNames { model: (*only).clone(), fallback }),
        ([], [only]) => Ok(ModelFileNames { model: only.clone(), fallback }),
        ([], []) => Err(ModelFolderError::NoModel {
            path: folder.to_owned(),
            reason: "holds no model.onnx, model.xml or model.tflite".to_owned(),
        }),
        _ => Err(several(&others)),
    }
}

/// Reads a label file of the model's folder: one label a line.
pub fn labels(folder: &Path, name: &str) -> Result<Vec<String>, ModelFolderError> {
    let text = contained::read_text(folder, Path::new(name), contained::DATA_MAX);
    let text = text.map_err(read_error(&folder.join(name)))?;
    Ok(ledge_engine::pipeline::classification::parse_labels(&text))
}

/// Reads a file of the model's folder that its pipeline needs.
pub fn pipeline_file(folder: &Path, name: &str) -> Result<Bytes, ModelFolderError> {
    let content = contained::read(folder, Path::new(name), contained::PIPELINE_FILE_MAX);
    Ok(content.map_err(read_error(&folder.join(name)))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::durable;

    fn file(root: &Path, path: &str, content: &[u8]) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        durable::replace(&path, content).unwrap();
    }

    #[test]
    fn only_positive_numbers_are_versions() {
        let root = tempfile::tempdir().unwrap();
        for name in ["2", "10", "01", "abc", "0", "-1"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        file(root.path(), "3", b"a file, not a folder");
        let (found, mut strange) = versions(root.path()).unwrap();
        strange.sort();
        assert_eq!(found.iter().map(|version| version.get()).collect::<Vec<_>>(), [2, 10]);
        assert_eq!(strange, ["-1", "0", "01", "abc"]);
    }

    #[test]
    fn a_model_without_a_version_folder_says_what_to_move_or_rename() {
        let root = tempfile::tempdir().unwrap();
        let reason = |model: &str, config: &str| {
            let config = ModelConfig::parse("model.toml", config).unwrap();
            selected_versions(&root.path().join(model), &config).unwrap_err().to_string()
        };
        file(root.path(), "flat/model.onnx", b"x");
        file(root.path(), "flat/v1/labels.txt", b"x");
        let expected = format!("flat has no version folder: move model.onnx into {}/flat/1", root.path().display());
        assert!(reason("flat", "").ends_with(&expected), "{}", reason("flat", ""));
        file(root.path(), "named/v1/model.onnx", b"x");
        assert!(reason("named", "").ends_with("such as 1, and found v1"), "{}", reason("named", ""));
        file(root.path(), "empty/model.toml", b"");
        assert!(reason("empty", "").ends_with("a positive integer, such as 1"), "{}", reason("empty", ""));
    }

    #[test]
    fn folders_that_cannot_be_models_are_returned_with_a_name_that_could() {
        let root = tempfile::tempdir().unwrap();
        let long = "m".repeat(137);
        for name in ["good", "My Model", &long, ".git", "lost+found"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        let (models, misnamed) = models(root.path()).unwrap();
        assert_eq!(models.iter().map(ModelName::as_str).collect::<Vec<_>>(), ["good"]);
        let told: Vec<_> = misnamed.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("model name \"My Model\" has a character outside"), "{}", told[0]);
        assert!(told[0].ends_with("/My Model, for example to My_Model"), "{}", told[0]);
        assert!(told[1].contains("128") && told[1].ends_with(&long), "{}", told[1]);
    }

    #[test]
    fn a_folder_without_exactly_one_model_says_what_it_holds() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("1")).unwrap();
        let error =
            |version_folder: &str| version(&root.path().join(version_folder), &[], ModelReader::here()).unwrap_err();
        let no_model = |version_folder: &str| match error(version_folder) {
            ModelFolderError::NoModel { path, reason } if path == root.path().join(version_folder) => reason,
            other => panic!("{other:?}"),
        };
        let bad_file = |path: &str| {
            let (version_folder, _) = path.split_once('/').unwrap();
            let error = error(version_folder);
            let is_that =
                matches!(&error, ModelFolderError::BadFile { path: bad, .. } if *bad == root.path().join(path));
            assert!(is_that, "{path}: {error:?}");
        };
        assert_eq!(no_model("1"), "holds no model.onnx, model.xml or model.tflite");
        file(root.path(), "2/a.onnx", b"x");
        file(root.path(), "2/b.onnx", b"x");
        assert!(no_model("2").ends_with(": a.onnx, b.onnx"), "{}", no_model("2"));
        file(root.path(), "3/model.onnx", b"");
        bad_file("3/model.onnx");
        file(root.path(), "4/model.tflite", b"\x89PNG\r\n\x1a\n");
        bad_file("4/model.tflite");
        file(root.path(), "5/model.xml", b"<net/>");
        for unread in ["5/model.bin", "6"] {
            let error = error(unread.split('/').next().unwrap());
            let is_that = matches!(&error, ModelFolderError::Read { path, .. } if *path == root.path().join(unread));
            assert!(is_that, "{unread}: {error:?}");
        }
    }

    #[test]
    fn a_float_file_beside_a_model_is_its_fallback_and_counts() {
        let root = tempfile::tempdir().unwrap();
        let read = || version(&root.path().join("1"), &[], ModelReader::here());
        let names = |read: &VersionFolder| {
            let name = |read: &VersionModel| read.files.model.file_name().unwrap().to_string_lossy().into_owned();
            (name(&read.model), read.fallback.as_ref().map(name))
        };
        let model = |content: &str| [&b"....TFL3"[..], content.as_bytes()].concat();
        // With no other file it is the model.
        file(root.path(), "1/model.float.tflite", &model("float"));
        let alone = read().unwrap();
        assert_eq!(names(&alone), ("model.float.tflite".into(), None));
        for int8 in ["net.tflite", "model.tflite"] {
            file(root.path(), &format!("1/{int8}"), &model("int8"));
            let both = read().unwrap();
            assert_eq!(names(&both), (int8.into(), Some("model.float.tflite".into())));
            file(root.path(), "1/model.float.tflite", &model("other"));
            assert_ne!(read().unwrap().digest, both.digest);
            file(root.path(), "1/model.float.tflite", &model("float"));
            assert_eq!(read().unwrap().digest, both.digest);
        }
        // Which of the two is which counts as well.
        let digest = read().unwrap().digest;
        file(root.path(), "1/model.float.tflite", &model("int8"));
        file(root.path(), "1/model.tflite", &model("float"));
        assert_ne!(read().unwrap().digest, digest);
        file(root.path(), "1/model.float.tflite", b"\x89PNG\r\n\x1a\n");
        let error = read().unwrap_err();
        let is_that =
            matches!(&error, ModelFolderError::BadFile { path, .. } if path.ends_with("1/model.float.tflite"));
        assert!(is_that, "{error:?}");
        file(root.path(), "1/model.float.onnx", b"x");
        let reason = read().unwrap_err().to_string();
        assert!(reason.ends_with(": model.float.onnx, model.float.tflite"), "{reason}");
    }

    #[test]
    fn files_are_unchanged_until_a_byte_or_a_name_is_another() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("1");
        let model = |content: &str| [&b"....TFL3"[..], content.as_bytes()].concat();
        file(root.path(), "1/model.tflite", &model("int8"));
        let read = version(&folder, &[], ModelReader::here()).unwrap();
        let same = |before: &VersionFolder| is_unchanged(&folder, &[], &before.files, &before.digest).unwrap();
        assert!(same(&read), "just written, so it is read again");
        let mut marked = read.files.clone();
        let metadata = std::fs::metadata(folder.join("model.tflite")).unwrap();
        marked[0].mark = FileMark::settled(&metadata).or(Some(FileMark::of(&metadata)));
        assert!(is_unchanged(&folder, &[], &marked, "any digest").unwrap(), "an old file is not");

        file(root.path(), "1/model.tflite", &model("INT8"));
        assert!(!same(&read) && !is_unchanged(&folder, &[], &marked, &read.digest).unwrap());
        file(root.path(), "1/model.tflite", &model("int8"));
        assert!(same(&read) && is_unchanged(&folder, &[], &marked, &read.digest).unwrap(), "replaced by the same");
        file(root.path(), "1/model.float.tflite", &model("float"));
        assert!(!same(&read), "another file belongs to it");
        std::fs::remove_file(folder.join("model.tflite")).unwrap();
        assert!(!same(&read));
    }

    #[test]
    fn the_stamp_of_a_model_is_another_after_any_change_but_one_of_another_version() {
        let root = tempfile::tempdir().unwrap();
        let stamp = || version_files::stamp(root.path(), &root.path().join("1"));
        file(root.path(), "1/model.onnx", b"x");
        let mut before = stamp();
        assert_eq!(stamp(), before);
        file(root.path(), "2/model.onnx", b"x");
        assert_eq!(stamp(), before);
        for path in ["1/model.onnx", "model.toml", "golden/one.json", "1/weights/external.bin"] {
            file(root.path(), path, b"y");
            let after = stamp();
            assert_ne!(after, before, "{path}");
            before = after;
        }
    }

    #[test]
    fn other_weights_give_another_digest() {
        let root = tempfile::tempdir().unwrap();
        file(root.path(), "1/model.xml", b"<net/>");
        file(root.path(), "1/model.bin", b"weights");
        let first = version(&root.path().join("1"), &[], ModelReader::here()).unwrap().digest;
        assert_eq!(version(&root.path().join("1"), &[], ModelReader::here()).unwrap().digest, first);
        file(root.path(), "1/model.bin", b"Weights");
        assert_ne!(version(&root.path().join("1"), &[], ModelReader::here()).unwrap().digest, first);
    }

    #[test]
    fn a_file_has_the_same_hash_in_memory_and_piece_by_piece() {
        let root = tempfile::tempdir().unwrap();
        for length in [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let content: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[1]).collect();
            file(root.path(), "weights", &content);
            let (open, length) = contained::open_at_most(root.path(), Path::new("weights"), u64::MAX).unwrap();
            let (mut whole, mut pieces) = (blake3::Hasher::new(), blake3::Hasher::new());
            hash_begin(&mut whole, "name", content.len() as u64);
            whole.update(&content);
            hash_file(&mut pieces, "name", &open, length).unwrap();
            assert_eq!(pieces.finalize(), whole.finalize(), "{length} bytes");
        }
    }

    #[test]
    fn a_chain_has_a_file_for_each_part_and_may_lack_optional_ones() {
        let root = tempfile::tempdir().unwrap();
        let parts = [ChainModel { name: "find", is_optional: false }, ChainModel { name: "turn", is_optional: true }];
        let read = || version(&root.path().join("1"), &parts, ModelReader::here());
        let tflite = |content: &str| [&b"....TFL3"[..], content.as_bytes()].concat();
        file(root.path(), "1/model.tflite", &tflite("another"));
        let no_model = || match read() {
            Err(ModelFolderError::NoModel { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(no_model(), "holds no find.onnx, find.xml or find.tflite");
        file(root.path(), "1/find.tflite", &tflite("find"));
        let names = |read: &VersionFolder| read.parts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let one = read().unwrap();
        assert_eq!(names(&one), ["find"]);
        file(root.path(), "1/turn.tflite", &tflite("turn"));
        let both = read().unwrap();
        assert_eq!(names(&both), ["find", "turn"]);
        assert_ne!(one.digest, both.digest);
        // Models that are not part of the chain do not count.
        file(root.path(), "1/model.tflite", &tflite("changed"));
        assert_eq!(read().unwrap().digest, both.digest);
        file(root.path(), "1/find.xml", b"<net/>");
        assert_eq!(no_model(), "holds several models find.onnx, find.xml or find.tflite");
    }
}
