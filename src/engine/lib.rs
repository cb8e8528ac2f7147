//! Runtimes: ONNX Runtime and OpenVINO behind one trait, and the pipelines from what callers send to answers. All code
//! that reads foreign bytes for a model is here.
//!
//! Files, in reading order:
//! * `backend.rs` - the trait `Backend`, signatures, options, errors of loads and runs
//! * `batch.rs` - inputs of several requests joined into those of one run, and its outputs split among them
//! * `ffi.rs` - functions of the runtimes that the Rust crates do not wrap
//! * `onnxruntime.rs` - ONNX Runtime behind `Backend`
//! * `openvino.rs` - OpenVINO behind `Backend`
//! * `files.rs` - the facts about a model that its file shows without a runtime, and the bounds of them
//! * `external_file.rs` - files next to a model file with its weights
//! * `onnx.rs` - facts that an ONNX file states, read without a runtime: names, external data
//! * `onnx/` - `protos.rs` has the messages of a file and `error.rs` the refusals; `limits.rs` refuses absurd shapes,
//!   sizes and depths, and `tensor.rs` counts the data of a tensor; `dangers.rs` finds operators that crash a runtime
//!   or corrupt its memory for some inputs, and `domains.rs` those that it lacks; `class_maps.rs` makes tensors of
//!   outputs that are maps
//! * `operators.rs` - the table of what callers' numbers do to the runtimes (`operators.tsv`), by operator
//! * `values.rs` - the numbers that a runtime computes right, by operator and datatype (`values.tsv`), and the bounds
//!   of values
//! * `ir.rs` - follows callers' numbers through the graph of an OpenVINO IR
//! * `tflite.rs` - follows callers' numbers through a TensorFlow Lite file, and reads the scales of its quantized
//!   inputs and outputs
//! * `pipeline/` - images to tensors, and outputs to answers; its `mod.rs` has the map
//! * `warm_up.rs` - runs on zeros, in every batch size that will be used
//! * `elements.rs`, `text.rs` - copies of the elements of an output; messages on one line, of bounded length
//! * `cores.rs` - the cores of the machine, the daemon's budget of them, and pinning
//!
//! Invariants:
//! * No task and no thread of the async runtime. The order of the steps of a chain (`ModelChain::run`) is a future,
//!   which the task of the call polls. No socket. No file is written except OpenVINO's cache of compiled models.
//! * Only `onnxruntime.rs`, `openvino.rs` and `ffi.rs` name the crates of the runtimes. Only `ffi.rs` has
//!   unsafe code.
//! * A backend is loaded on one thread and run by any thread, one at a time: `Backend` is `Send`, not `Sync`.
//! * The library of a runtime is loaded with the first model that needs it, never before, and never unloaded.
//! * ONNX Runtime is loaded only where `ORT_DISABLE_TELEMETRY=1` is set, since it would otherwise open connections of
//!   its own.
//! * A damaged image or a panic of a decoder is an error of that one image. Sizes are checked before anything is
//!   allocated.
//!
//! # Where it is decided
//!
//! * The effect of callers' numbers on a runtime: `operators.rs`, from the measured table `operators.tsv`.
//!   `onnx/dangers.rs`, `ir.rs` and `tflite.rs` follow these numbers through a file
//! * The numbers that a runtime computes right: `values.rs`, from the measured table `values.tsv`
//! * The limit for the integers of a call, found when the file is read: `find` in `onnx/dangers.rs` for ONNX,
//!   `within_limits` in `operators.rs` for IR and TensorFlow Lite. Each runtime asks for its own by
//!   `InputDangers::bits_of` at a load. A call with larger ones is refused with 400: `check_numbers` in `openvino.rs`,
//!   `check_bits` in `values.rs`
//! * A panic in a run: `pipeline/work.rs`, which makes it an error of that run
//! * The steps of a chain, and the state between them: `pipeline/chain.rs` (`ModelChain`, `RunSteps`)
//! * The steps of a document through several models: `pipeline/document_reading/chain.rs`; the request and the result
//!   of a step: `step.rs` beside it; the inputs of the models, and the meaning of their outputs: `steps.rs` beside it,
//!   and `pipeline/ocr/`
//! * The size at which a JPEG is decoded: `JpegScale::for_resize` in
//!   `pipeline/image/scaled_jpeg/scale.rs`
//! * A picture with too many pixels is refused before it is decoded: `DecodeLimits::check` in
//!   `pipeline/image/limits.rs`; the number is `http.max_pixels`
//! * The format of a file, and its name in messages: `pipeline/file_format.rs`

pub mod backend;
pub mod batch;
pub mod cores;
mod elements;
mod external_file;
pub mod files;
mod ffi;
pub mod ir;
mod onnxruntime;
pub mod onnx;
mod openvino;
mod operators;
pub mod pipeline;
mod text;
pub mod tflite;
mod values;
pub mod warm_up;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use backend::{Backend, LoadOptions, ModelFiles, ModelLoadError, Runtime};
use pipeline::work::panic_message;

/// The runtimes that this process can use. Clones share them.
///
/// A runtime's library is loaded with its first model, so a box that needs one runtime does not load the other.
#[derive(Debug, Clone)]
pub struct Runtimes {
    inner: Arc<RuntimesInner>,
}

#[derive(Debug)]
struct RuntimesInner {
    folder: PathBuf,
    /// The folders of runtimes whose library is not in `folder`, by their names.
    own_folders: BTreeMap<&'static str, PathBuf>,
    onnxruntime: Arc<OnceLock<Result<onnxruntime::OnnxRuntime, String>>>,
    openvino: Arc<OnceLock<Result<openvino::OpenVino, String>>>,
}

impl Runtimes {
    /// Uses the shared libraries in `folder`.
    pub fn new(folder: PathBuf) -> Self {
        Self::with_own_folders(folder, &BTreeMap::new())
    }

    /// Uses the shared libraries in `folder`, except for the runtimes in `own`, which maps names to folders.
    pub fn with_own_folders(folder: PathBuf, own: &BTreeMap<String, PathBuf>) -> Self {
        let own_folder = |runtime: Runtime| Some((runtime.as_str(), own.get(runtime.as_str())?.clone()));
        let own_folders = Runtime::ALL.into_iter().filter_map(own_folder).collect();
        let (onnxruntime, openvino) = (Arc::default(), Arc::default());
        Self { inner: Arc::new(RuntimesInner { folder, own_folders, onnxruntime, openvino }) }
    }

    /// The same, with the library of `runtime` in the folder `own`, or with `None` in that of all others. The other
    /// runtime stays as it is. For a process that has not loaded the library: nothing takes one out of a process.
    #[must_use]
    pub fn with_library_in(&self, runtime: Runtime, own: Option<PathBuf>) -> Self {
        let RuntimesInner { folder, own_folders, onnxruntime, openvino } = &*self.inner;
        let (mut own_folders, folder) = (own_folders.clone(), folder.clone());
        match own {
            Some(own) => own_folders.insert(runtime.as_str(), own),
            None => own_folders.remove(runtime.as_str()),
        };
        let (mut onnxruntime, mut openvino) = (onnxruntime.clone(), openvino.clone());
        match runtime {
            Runtime::OnnxRuntime => onnxruntime = Arc::default(),
            Runtime::OpenVino => openvino = Arc::default(),
        }
        Self { inner: Arc::new(RuntimesInner { folder, own_folders, onnxruntime, openvino }) }
    }

    /// The folder of the library of `runtime`.
    pub fn folder_of(&self, runtime: Runtime) -> &Path {
        self.inner.own_folders.get(runtime.as_str()).unwrap_or(&self.inner.folder)
    }

    /// The folder of the libraries of all others.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// The folders of the runtimes that have their own, by their names.
    pub fn own_folders(&self) -> BTreeMap<String, PathBuf> {
        self.inner.own_folders.iter().map(|(name, folder)| ((*name).to_owned(), folder.clone())).collect()
    }

    /// True when both find their libraries in the same folders.
    pub fn are_in_the_folders_of(&self, other: &Self) -> bool {
        Runtime::ALL.into_iter().all(|runtime| self.folder_of(runtime) == other.folder_of(runtime))
    }

    /// Finds the runtime's shared library, without loading it.
    pub fn library(&self, runtime: Runtime) -> Result<PathBuf, String> {
        let stem = match runtime {
            Runtime::OnnxRuntime => "libonnxruntime.so",
            Runtime::OpenVino => "libopenvino_c.so",
        };
        let folder = self.folder_of(runtime);
        newest_library(folder, stem).ok_or_else(|| format!("no {stem} in {} (runtimes.dir)", folder.display()))
    }

    /// The file names of the libraries, which differ between versions. Asking for a version would load the library.
    pub fn libraries(&self) -> String {
        let name = |runtime| match self.library(runtime) {
            Ok(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Err(_) => "-".to_owned(),
        };
        Runtime::ALL.map(name).join(" ")
    }

    /// The version of `runtime`, or the reason why it cannot be used. Loads its library.
    pub fn version(&self, runtime: Runtime) -> Result<&str, &str> {
        match runtime {
            Runtime::OnnxRuntime => self.onnxruntime().map(onnxruntime::OnnxRuntime::version),
            Runtime::OpenVino => self.openvino().map(openvino::OpenVino::version),
        }
        .map_err(String::as_str)
    }

    /// Loads a model into `runtime`. The runtime's own threads inherit the cores of the calling thread. A panic of a
    /// runtime's binding is an error of this load only.
    pub fn load(
        &self,
        runtime: Runtime,
        files: &ModelFiles,
        options: &LoadOptions,
    ) -> Result<Box<dyn Backend>, ModelLoadError> {
        if let Some((_, reason)) = files.dangers.refused.iter().find(|(endangered, _)| *endangered == runtime) {
            return Err(ModelLoadError::Danger { runtime, reason: reason.clone() });
        }
        let missing = |reason: &String| ModelLoadError::RuntimeMissing { runtime, reason: reason.clone() };
        let load = || match runtime {
            Runtime::OnnxRuntime => self.onnxruntime().map_err(missing)?.load(files, options),
            Runtime::OpenVino => self.openvino().map_err(missing)?.load(files, options),
        };
        catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", panic_message(&*panic));
            Err(ModelLoadError::Refused { runtime, reason })
        })
    }

    fn onnxruntime(&self) -> Result<&onnxruntime::OnnxRuntime, &String> {
        let open = || onnxruntime::OnnxRuntime::open(&self.library(Runtime::OnnxRuntime)?);
        self.inner.onnxruntime.get_or_init(open).as_ref()
    }

    fn openvino(&self) -> Result<&openvino::OpenVino, &String> {
        let open = || openvino::OpenVino::open(&self.library(Runtime::OpenVino)?);
        self.inner.openvino.get_or_init(open).as_ref()
    }
}

/// Finds the file in `folder` that is named `stem`, or that has the highest version after it (`stem.1.31.1`).
fn newest_library(folder: &Path, stem: &str) -> Option<PathBuf> {
    let version = |name: &str| -> Option<Vec<u64>> {
        let rest = name.strip_prefix(stem)?;
        if rest.is_empty() {
            return Some(Vec::new());
        }
        rest.strip_prefix('.')?.split('.').map(|part| part.parse().ok()).collect()
    };
    let names = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names.filter_map(|name| Some((version(&name)?, name))).max()?.1;
    Some(folder.join(newest))
}
