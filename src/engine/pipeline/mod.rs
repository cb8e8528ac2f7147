//! The pipelines of models: bytes of a caller, such as a photograph, into tensors before a run, and the outputs of the
//! run into an answer. A model has the pipeline that its config sets up in `[pipeline]`; `serving` in the crate
//! `models` runs the model in between. `docs/add-a-pipeline.md` says how to add a kind.
//!
//! Files, in reading order:
//! * `mod.rs` - the table of kinds, and the table `[pipeline]` of a model's config
//! * `error.rs` - the reasons why a content has no inputs, and outputs no results
//! * `prepared_inputs.rs` - the tensors that a pipeline makes of a content
//! * `kind.rs`, `sample.png` - the interface of a kind: its line of the table, its section, its pipeline
//! * `setup.rs` - the facts of which a pipeline is made, as plain data
//! * `work.rs`, `work/` - one run: inputs are made, the model runs, results are made of its outputs
//! * `chain.rs` - pipelines that run several models, step by step
//! * `content.rs` - the content of a call: a photograph, a document, rows, or texts within their limits
//! * `image_classification.rs`, `image_classification/` - the kind: a photograph in, labels out
//! * `object_detection.rs`, `object_detection/` - the kind: a photograph in, boxes with labels out
//! * `document_reading.rs`, `document_reading/` - the kind: a document in, lines of text and fields out, by several
//!   models
//! * `text_embedding.rs`, `text_embedding/` - the kind: texts in, a vector for each out
//! * `table.rs`, `table/` - the kind: rows with named columns in, classes or numbers out
//!
//! Tools for kinds:
//! * `tokenizer.rs` - texts to tokens; `tokenizer_limits.rs` has the bounds on a tokenizer file
//! * `file_format.rs` - the format of a file by its first bytes, and its name in messages
//! * `containers.rs` - sizes and ends of image files, read before a decoder gets them
//! * `image.rs`, `image/` - decode: JPEG, PNG or WebP bytes into an upright RGB image, a JPEG no larger than needed
//! * `orientation.rs` - the rotation and mirroring of a photograph, by its Exif data
//! * `picture_reading.rs` - brightness and sharpness of a photograph
//! * `picture_size.rs` - the size of a photograph by its header
//! * `preparation.rs` - prepare: an image into the tensor that a model expects
//! * `quantization.rs` - scale: integers into the real numbers that they stand for, and back
//! * `detection.rs` - objects in a photograph, and whether two versions found the same
//! * `annotation.rs`, `annotation/` - annotate: a photograph with boxes and labels drawn, and places
//!   blurred; `canvas.rs` draws
//! * `classification.rs`, `classification/` - rank: a tensor of scores into classes, or into Triton's classification
//!   strings
//! * `ocr.rs`, `ocr/` - read: the steps around the models that find, turn and read lines of text, their order, and
//!   fields such as the total of a receipt
//!
//! Invariants:
//! * A kind exists because `mod.rs` lists it in `KINDS`. Other crates use of its module only its types, such as
//!   documents and embeddings.
//! * A pipeline is pure: bytes and tensors come in, tensors and JSON go out. It reads no file and opens no connection.
//!   A chain keeps states between its steps until their leases are dropped, and may have another process prepare its
//!   content, such as the one that draws the pages of documents.
//! * The data of a run, and its results, could pass through a process boundary (`work.rs`).
//! * It knows a model by its signature, labels and quantization, and nothing of requests.
//! * The size of an image is known before a pixel is decoded. A file that was cut off is an error, never a half-grey
//!   image.

pub mod annotation;
pub mod chain;
pub mod classification;
mod containers;
pub mod content;
pub mod detection;
pub mod document_reading;
mod error;
pub mod file_format;
pub mod image;
mod image_classification;
pub mod kind;
mod object_detection;
mod orientation;
pub mod preparation;
pub mod picture_reading;
pub mod picture_size;
mod prepared_inputs;
pub mod quantization;
pub mod ocr;
pub mod setup;
pub mod table;
pub mod text_embedding;
pub mod tokenizer;
mod tokenizer_limits;
pub mod work;

use ledge_base::toml_check::ValueProblem;
use serde::{Deserialize, Serialize};

use self::content::PipelineInput;
use self::kind::{PipelineKind, PipelineSection};

/// The table of kinds.
pub const KINDS: &[&PipelineKind] = &[
    &document_reading::KIND,
    &image_classification::KIND,
    &object_detection::KIND,
    &table::KIND,
    &text_embedding::KIND,
];

impl PipelineInput {
    /// The sections of the kinds that take it, for messages: `[pipeline.a] or [pipeline.b]`.
    pub fn sections(self) -> String {
        sections_of(|kind| kind.input == self)
    }
}

/// The sections of some kinds, for messages: `[pipeline.a] or [pipeline.b]`.
pub fn sections_of(is_meant: impl Fn(&PipelineKind) -> bool) -> String {
    let kinds = KINDS.iter().filter(|kind| is_meant(kind));
    kinds.map(|kind| format!("[pipeline.{}]", kind.name)).collect::<Vec<_>>().join(" or ")
}

/// The table `[pipeline]` of a model's config, with a field for the section of each kind. A model has at most one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineConfig {
    document_reading: Option<document_reading::DocumentReading>,
    image_classification: Option<image_classification::ImageClassification>,
    object_detection: Option<object_detection::ObjectDetection>,
    table: Option<table::TableConfig>,
    text_embedding: Option<text_embedding::TextEmbedding>,
}

impl PipelineConfig {
    /// The sections of all kinds. The compiler asks here for each field, and for as many as there are kinds.
    fn sections(&self) -> [Option<&dyn PipelineSection>; KINDS.len()] {
        let Self { document_reading, image_classification, object_detection, table, text_embedding } = self;
        [
            document_reading.as_ref().map(|section| section as _),
            image_classification.as_ref().map(|section| section as _),
            object_detection.as_ref().map(|section| section as _),
            table.as_ref().map(|section| section as _),
            text_embedding.as_ref().map(|section| section as _),
        ]
    }

    /// The section of the model's pipeline, if its config has one.
    pub fn section(&self) -> Option<&dyn PipelineSection> {
        self.sections().into_iter().flatten().next()
    }

    /// The content that the model takes in place of tensors; `None` for a model that takes tensors only.
    pub fn input(&self) -> Option<PipelineInput> {
        Some(self.section()?.kind().input)
    }

    /// Returns true if the model takes `input`.
    pub fn takes(&self, input: PipelineInput) -> bool {
        self.input() == Some(input)
    }

    /// Every mistake that the types do not exclude; empty for a valid table.
    pub fn mistakes(&self) -> Vec<ValueProblem> {
        mistakes(self.sections().into_iter().flatten())
    }
}

fn mistakes<'s>(sections: impl Iterator<Item = &'s dyn PipelineSection>) -> Vec<ValueProblem> {
    let (mut mistakes, mut first) = (Vec::new(), None);
    for section in sections {
        let name = section.kind().name;
        if let Some(first) = first {
            let message = format!("[pipeline.{first}] is set as well: a model has one pipeline");
            mistakes.push(ValueProblem::new(format!("pipeline.{name}"), message));
        }
        first = first.or(Some(name));

        let own = section.mistakes().into_iter();
        let table = format!("pipeline.{name}");
        mistakes.extend(own.map(|mistake| mistake.within(&table)));
    }
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_sections_of_model_toml_and_no_two_are_the_same() {
        let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        let error = toml::from_str::<PipelineConfig>("unknown = 1").unwrap_err().to_string();
        // As serde lists the fields: "expected `a`", "expected `a` or `b`", "expected one of `a`, `b`, `c`".
        let expected = error.split_once("expected ").unwrap().1;
        let sections: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        assert_eq!(names, sections, "{error}");
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
    }

    #[test]
    fn a_model_has_one_pipeline() {
        let config: PipelineConfig = toml::from_str("image_classification = { crop = [1, 1], top_k = 0 }").unwrap();
        let sections = config.sections().into_iter().flatten();
        let found = mistakes(sections.clone().chain(sections));
        let keys: Vec<_> =
            found.iter().map(|mistake| mistake.key.strip_prefix("pipeline.image_classification").unwrap()).collect();
        assert_eq!(keys, [".top_k", "", ".top_k"]);
        assert_eq!(found[1].message, "[pipeline.image_classification] is set as well: a model has one pipeline");
        assert_eq!(mistakes(std::iter::empty()), []);
    }

    #[test]
    fn an_input_names_the_sections_that_take_it() {
        assert!(PipelineInput::Photograph.sections().starts_with("[pipeline.image_classification]"));
        assert!(!PipelineConfig::default().takes(PipelineInput::Photograph));
    }
}
