//! The kind `document_reading`: a document in, its lines of text and its fields out. A chain of models: one finds the
//! orientation of a page, one finds lines, one finds those that are upside down, one reads them.
//!
//! Files, in reading order:
//! * `document_reading.rs` - the section, and the pipeline as the rest of Ledge sees it
//! * `document_reading/models.rs`, `document_reading/page_shape.rs` - the names of the models and results, and the size
//!   of a page
//! * `document_reading/chain.rs` - the order of the steps, from the bytes of a document to its pages
//! * `document_reading/step.rs` - a step as plain data: the task for a page, and its result
//! * `document_reading/pages.rs` - the process of the models: the pages in memory between their steps
//! * `document_reading/steps.rs` - the steps between the models of one page
//! * `document_reading/documents.rs` - the documents of a file that has several
//! * `document_reading/document.rs` - the answer: pages, lines, fields
//! * `document_reading/searchable.rs` - the document with a text layer

mod chain;
mod document;
mod documents;
mod models;
mod page_shape;
mod pages;
mod searchable;
pub use self::searchable::{SearchableError, searchable_pdf};

pub mod step;
pub mod steps;

use std::collections::HashMap;
use std::sync::Arc;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::{DataType, Tensor};
use ledge_base::toml_check::ValueProblem;
use ledge_documents::TextLayerPolicy;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use self::chain::OcrChain;
use self::document::Document;
use self::steps::OcrSteps;
use super::annotation::TextOutline;
use super::chain::ModelChain;
use super::content::{CallContent, PipelineInput};
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::kind::{ChainModel, GoldenExpectation, ModelFacts, Pipeline, PipelineKind, PipelineSection, PrintedRow};
use super::ocr::ctc::CtcAlphabet;
use super::ocr::detection::{TextDetectionRules, TextDetectionSize};
use super::prepared_inputs::PreprocessedInputs;
use crate::backend::ModelSignature;

pub const KIND: PipelineKind = PipelineKind {
    name: "document_reading",
    input: PipelineInput::Document,
    models: MODELS,
    member: "document",
    schema: |generator| generator.subschema_for::<Document>(),
    text: Some(text),
    is_ranked: false,
    rows,
};

/// The models of the chain.
const MODELS: &[ChainModel] = &[
    ChainModel { name: models::FIND, is_optional: false },
    ChainModel { name: models::READ, is_optional: false },
    ChainModel { name: models::LINE_TURN, is_optional: true },
    ChainModel { name: models::PAGE_TURN, is_optional: true },
];

/// The key of the metadata of `PaddleOCR`'s models under which they have their characters.
const CHARACTERS: &str = "character";

/// The most lines of a page that a section may allow.
const LINES_MAX_MAX: usize = 5000;

/// The most pages of a document that a section may allow.
const PAGES_MAX_MAX: usize = 1000;

/// The table `[pipeline.document_reading]` of a model's config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DocumentReading {
    /// The file of the model's folder with the characters that `read` knows, one a line; by default those in its
    /// metadata.
    pub characters: Option<String>,
    /// The longer side of the picture in which lines are found, in pixels, 32 to 4096; a larger page is made smaller.
    /// 1280 by default.
    pub longer_side_max: u32,
    /// The shorter side, in pixels, to which a smaller page is enlarged. 736 by default.
    pub shorter_side_min: u32,
    /// The least mean probability of a line that was found, 0 to 1; 0.5 by default.
    pub line_threshold: f32,
    /// The most lines of a page, the largest of them; 1000 by default.
    pub lines_max: usize,
    /// The least confidence of a line that was read, 0 to 1; others are left out. 0.5 by default.
    pub min_confidence: f32,
    /// The most pages of a document; 50 by default.
    pub pages_max: usize,
    /// The pages for which the text layer of a PDF is used in place of OCR; `auto` by default.
    pub text_layer: TextLayerPolicy,
}

impl Default for DocumentReading {
    fn default() -> Self {
        let TextDetectionRules { line_threshold, lines_max, .. } = TextDetectionRules::default();
        Self {
            characters: None,
            longer_side_max: 1280,
            shorter_side_min: 736,
            line_threshold,
            lines_max,
            min_confidence: 0.5,
            pages_max: 50,
            text_layer: TextLayerPolicy::default(),
        }
    }
}

impl PipelineSection for DocumentReading {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        self.characters.iter().map(|file| ("characters", file.as_str())).collect()
    }

    fn mistakes(&self) -> Vec<ValueProblem> {
        let is_share = |share: f32| (0.0..=1.0).contains(&share);
        let checks = [
            ((32..=4096).contains(&self.longer_side_max), "longer_side_max", "expected 32 to 4096"),
            (
                (1..=self.longer_side_max).contains(&self.shorter_side_min),
                "shorter_side_min",
                "expected 1 to longer_side_max",
            ),
            (is_share(self.line_threshold), "line_threshold", "expected 0 to 1"),
            (is_share(self.min_confidence), "min_confidence", "expected 0 to 1"),
            ((1..=LINES_MAX_MAX).contains(&self.lines_max), "lines_max", "expected 1 to 5000"),
            ((1..=PAGES_MAX_MAX).contains(&self.pages_max), "pages_max", "expected 1 to 1000"),
        ];
        checks
            .into_iter()
            .filter(|(holds, ..)| !holds)
            .map(|(_, key, message)| ValueProblem::new(key, message))
            .collect()
    }

    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String> {
        for name in model.parts.keys() {
            check_part(model.parts, name)?;
        }
        let (characters, source) = self.characters(model)?;
        let alphabet = CtcAlphabet::from_lines(characters);
        let read = model.parts.get(models::READ).and_then(|signature| signature.outputs.first()?.shape.last().copied());
        let classes = read.and_then(|classes| usize::try_from(classes).ok()).unwrap_or(alphabet.classes());
        if classes != alphabet.classes() {
            return Err(format!(
                "read has {classes} classes, and {source} makes {}: a class for each line, and those of the blank and of \
                 the space",
                alphabet.classes()
            ));
        }
        let reader = OcrSteps {
            alphabet,
            size: TextDetectionSize { shorter_side_min: self.shorter_side_min, longer_side_max: self.longer_side_max },
            rules: TextDetectionRules {
                line_threshold: self.line_threshold,
                lines_max: self.lines_max,
                ..TextDetectionRules::default()
            },
            min_confidence: self.min_confidence,
            turns_pages: model.parts.contains_key(models::PAGE_TURN),
            turns_lines: model.parts.contains_key(models::LINE_TURN),
            fields: model.fields.to_vec(),
            pages_max: self.pages_max,
            text_layer: self.text_layer,
        };
        Ok(Arc::new(DocumentReader { chain: OcrChain { reader: Arc::new(reader), pages: Arc::default() } }))
    }
}

impl DocumentReading {
    /// The characters that `read` knows, one a line, and where they are from.
    fn characters<'m>(&'m self, model: ModelFacts<'m>) -> Result<(&'m str, String), String> {
        if let Some(name) = &self.characters {
            let file = model.files.get(name).ok_or_else(|| format!("{name} was not read"))?;
            let text = std::str::from_utf8(file).map_err(|_| format!("{name} is not UTF-8"))?;
            return Ok((text, name.clone()));
        }
        let metadata = model.part_metadata.get(models::READ).and_then(|metadata| metadata.get(CHARACTERS));
        let text = metadata.ok_or_else(|| {
            format!(
                "the characters of read are missing: its file has no {CHARACTERS:?} in its metadata. Write them into a \
                 file beside model.toml, one a line in the order of its classes, and name it as `characters` in \
                 [pipeline.{}]",
                KIND.name
            )
        })?;
        Ok((text, format!("{CHARACTERS:?} in its metadata")))
    }
}

/// Checks that a part takes one picture and returns floats.
fn check_part(parts: &HashMap<String, ModelSignature>, name: &str) -> Result<(), String> {
    let Some(ModelSignature { inputs, outputs }) = parts.get(name) else { return Err(format!("{name} is missing")) };
    let ([input], [output, ..]) = (inputs.as_slice(), outputs.as_slice()) else {
        return Err(format!("{name} has {} inputs and {} outputs, expected one of each", inputs.len(), outputs.len()));
    };
    if input.shape.len() != 4 || input.datatype != DataType::Fp32 {
        return Err(format!(
            "{name}: input {:?} is {} of shape {:?}, expected FP32 of [N, 3, height, width]",
            input.name, input.datatype, input.shape
        ));
    }
    if output.datatype != DataType::Fp32 {
        return Err(format!("{name}: output {:?} is {}, expected FP32", output.name, output.datatype));
    }
    Ok(())
}

/// The pipeline of one model.
#[derive(Debug)]
struct DocumentReader {
    chain: OcrChain,
}

impl Pipeline for DocumentReader {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn chain(&self) -> Option<&dyn ModelChain> {
        Some(&self.chain)
    }

    fn prepare(
        &self,
        _: &CallContent,
        _: DecodeLimits,
        _: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        Err(PreprocessError::Content("a document is read in steps".to_owned()))
    }

    fn outputs(&self) -> &[usize] {
        &[]
    }

    fn results(&self) -> Option<&'static [&'static str]> {
        Some(models::RESULTS)
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        let wrong = |reason: &str| PostprocessError::Values(format!("the document has no answer: {reason}"));
        let [_, document] = results else { return Err(wrong("a result is missing")) };
        let json = document.strings().and_then(|mut strings| strings.next()).ok_or_else(|| wrong("it is no text"))?;
        let json = std::str::from_utf8(json).map_err(|_| wrong("it is not UTF-8"))?;
        RawValue::from_string(json.to_owned()).map_err(|error| wrong(&error.to_string()))
    }

    fn outlines(&self, results: &[&Tensor]) -> Option<Vec<TextOutline>> {
        let [_, document] = results else { return None };
        document::outlines(std::str::from_utf8(document.strings()?.next()?).ok()?)
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        if expected.label.is_some() || expected.min_score.is_some() || expected.detections.is_some() {
            return Err(
                "pipeline.document_reading names no classes and detects no objects: leave `label`, `min_score` \
                        and `detections` out, and give `words`"
                    .to_owned(),
            );
        }
        // Models of lines are not sure of spaces.
        let letters = |text: &str| text.split_whitespace().collect::<String>().to_lowercase();
        let read = letters(&text(results));
        let missing = expected.words.into_iter().flatten().find(|word| !read.contains(&letters(word)));
        missing.map_or(Ok(()), |word| Err(format!("{word:?} was not read, of {} letters", read.chars().count())))
    }
}

/// The text of all pages.
fn text(results: &[&Tensor]) -> String {
    let pages = results.first().and_then(|pages| pages.strings());
    let pages = pages.into_iter().flatten().map(String::from_utf8_lossy);
    // A form feed divides pages, as in the output of other programs that read documents.
    pages.collect::<Vec<_>>().join("\u{c}\n")
}

/// A row for each line.
fn rows(result: &Value) -> Vec<PrintedRow> {
    let lines = result["pages"].as_array().into_iter().flatten().filter_map(|page| page["lines"].as_array()).flatten();
    let row =
        |line: &Value| Some(PrintedRow { score: line["confidence"].as_f64(), text: line["text"].as_str()?.to_owned() });
    lines.filter_map(row).collect()
}

#[cfg(test)]
mod tests;
