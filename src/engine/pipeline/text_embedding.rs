//! The kind `text_embedding`: texts in, a vector for each of them out.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::{DataType, Tensor};
use ledge_base::toml_check::ValueProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::classification::numbers;
use super::content::{CallContent, ContentDivision, PipelineInput, TEXT_BYTES_MAX, Texts};
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::kind::{GoldenExpectation, ModelFacts, Pipeline, PipelineKind, PipelineSection, PrintedRow, find};
use super::prepared_inputs::{Postprocess, PreprocessedInputs};
use super::tokenizer::{TokenizedText, Tokenizer};
use crate::backend::ModelPort;

pub const KIND: PipelineKind = PipelineKind {
    name: "text_embedding",
    input: PipelineInput::Texts,
    models: &[],
    member: "embeddings",
    schema: |generator| generator.subschema_for::<Vec<Embedding<'static>>>(),
    text: None,
    is_ranked: false,
    rows,
};

/// The names of the results, which are tensors with a row for each text.
pub const RESULTS: &[&str] = &["embedding", "tokens", "truncated"];

/// The most tokens of a text that a section may set.
const MAX_TOKENS_MAX: usize = 8192;
/// The most bytes of text of one run, where each text counts as the longest. A token has a byte at least, and some four
/// in the languages that a tokenizer was made for, so a run has some 2,000 tokens.
const RUN_BYTES_MAX: usize = 8 << 10;
/// The most texts of one run: with 8 to 32 short sentences a run has the least CPU time a sentence, with 128 of them 40
/// % more (`benches/sentences.py`).
const RUN_TEXTS_MAX: usize = 32;
/// The tokens of padding that cost about as much as another run.
const RUN_PADDING_TOKENS: usize = 32;
/// The letters of a token, where tokens are estimated.
const TOKEN_LETTERS: usize = 6;
/// The bytes that a token is expected to have, where a text is cut.
const TOKEN_BYTES: usize = 4;

/// The bytes of the sample's sentence for each token that a text may have: more than a token of it has in any
/// tokenizer.
const SAMPLE_TOKEN_BYTES: usize = 16;
const _: () = assert!(MAX_TOKENS_MAX * SAMPLE_TOKEN_BYTES <= TEXT_BYTES_MAX, "the sample is one text");

/// The table `[pipeline.text_embedding]` of a model's config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextEmbedding {
    /// The file of the model's folder with the tokenizer; `tokenizer.json` by default.
    #[serde(default = "tokenizer_json")]
    pub tokenizer: String,
    /// The most tokens of a text, 2 to 8192; the rest of a longer text is left out. 512 by default.
    #[serde(default = "five_hundred")]
    pub max_tokens: usize,
    /// The model's output with the vectors; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// `mean` by default.
    #[serde(default)]
    pub pooling: Pooling,
    /// Set to make each vector one of length 1, as it is by default.
    #[serde(default = "yes")]
    pub normalize: bool,
}

/// The function that makes one vector of those of all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean of all tokens.
    #[default]
    Mean,
    /// The vector of the first token.
    Cls,
    /// The model's output is one vector for each text.
    None,
}

fn tokenizer_json() -> String {
    "tokenizer.json".to_owned()
}

fn five_hundred() -> usize {
    512
}

fn yes() -> bool {
    true
}

/// The vector of one text.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Embedding<'a> {
    /// The vector.
    pub embedding: &'a [f32],
    /// The tokens of the text that the vector is made of.
    pub tokens: i64,
    /// True when the text has more tokens than the model takes, and the rest was left out.
    pub truncated: bool,
}

impl PipelineSection for TextEmbedding {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        vec![("tokenizer", &self.tokenizer)]
    }

    fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        if !(2..=MAX_TOKENS_MAX).contains(&self.max_tokens) {
            mistakes.push(ValueProblem::new(
                "max_tokens",
                format!("is {}, expected 2 to {MAX_TOKENS_MAX}", self.max_tokens),
            ));
        }
        mistakes
    }

    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String> {
        let (position, output) = find(&KIND, "output", "output", &model.signature.outputs, self.output.as_deref())?;
        let sides = if self.pooling == Pooling::None { 2 } else { 3 };
        if output.shape.len() != sides {
            let form = if sides == 2 { "[texts, numbers]" } else { "[texts, tokens, numbers]" };
            return Err(format!(
                "output {:?} has the shape {:?}, pipeline.text_embedding.pooling = {:?} needs {form}",
                output.name, output.shape, self.pooling
            ));
        }
        if !matches!(output.datatype, DataType::Fp32 | DataType::Fp16 | DataType::Bf16) {
            return Err(format!("output {:?} is {}, expected floats", output.name, output.datatype));
        }
        let inputs = model.signature.inputs.iter().map(TokenInput::of).collect::<Result<Vec<_>, _>>()?;
        if !inputs.iter().any(|input| input.role == TokenRole::Ids) {
            return Err("the model has no input \"input_ids\", which pipeline.text_embedding fills".to_owned());
        }
        let fixed = |side: usize| {
            let sides = model.signature.inputs.iter().filter_map(|port| usize::try_from(*port.shape.get(side)?).ok());
            sides.min()
        };

        let max_tokens = fixed(1).map_or(self.max_tokens, |length| length.min(self.max_tokens));
        let file = model.files.get(&self.tokenizer).ok_or_else(|| format!("{} was not read", self.tokenizer))?;
        let tokenizer =
            LazyTokenizer { name: self.tokenizer.clone(), file: file.clone(), max_tokens, read: OnceLock::new() };
        let pool = TokenPooler { pooling: self.pooling, normalize: self.normalize };
        let (count, length) = (fixed(0), fixed(1));
        Ok(Arc::new(Embedder { tokenizer, max_tokens, inputs, count, length, output: [position], pool }))
    }
}

/// The numbers that an input of the model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenRole {
    Ids,
    /// 1 for each token, 0 for padding.
    Mask,
    Types,
}

/// An input of the model.
#[derive(Debug, Clone, Copy)]
struct TokenInput {
    role: TokenRole,
    /// Set for 32 bits, otherwise 64.
    is_short: bool,
}

impl TokenInput {
    fn of(port: &ModelPort) -> Result<Self, String> {
        let role = match port.name.as_str() {
            "input_ids" => TokenRole::Ids,
            "attention_mask" => TokenRole::Mask,
            "token_type_ids" => TokenRole::Types,
            name => {
                return Err(format!(
                    "pipeline.text_embedding fills input_ids, attention_mask and token_type_ids, and not the input {name:?}"
                ));
            }
        };
        match (port.datatype, port.shape.as_slice()) {
            (DataType::Int64 | DataType::Int32, [_, _]) => {
                Ok(Self { role, is_short: port.datatype == DataType::Int32 })
            }
            (datatype, shape) => Err(format!(
                "input {:?} is {datatype} of shape {shape:?}, pipeline.text_embedding makes INT64 or INT32 of [texts, tokens]",
                port.name
            )),
        }
    }

    fn tensor(self, texts: &[TokenizedText], length: usize, padding: u32) -> Result<Tensor, String> {
        let row = |tokens: &TokenizedText| match self.role {
            TokenRole::Ids => padded(&tokens.ids, length, padding),
            TokenRole::Mask => padded(&vec![1; tokens.ids.len()], length, 0),
            TokenRole::Types => padded(&tokens.types, length, 0),
        };
        let (shape, values) = (vec![texts.len(), length], texts.iter().flat_map(row));
        let tensor = if self.is_short {
            Tensor::from_vec(shape, values.map(|id| i32::try_from(id).unwrap_or(i32::MAX)).collect::<Vec<_>>())
        } else {
            Tensor::from_vec(shape, values.map(i64::from).collect::<Vec<_>>())
        };
        tensor.map_err(|error| error.to_string())
    }
}

fn padded(ids: &[u32], length: usize, padding: u32) -> Vec<u32> {
    let mut row = ids.to_vec();
    row.resize(length, padding);
    row
}

/// A tokenizer that is read with the first text: a process that runs no model does not parse the file. An invalid file
/// is found at the load, when the sample goes through the pipeline.
#[derive(Debug)]
struct LazyTokenizer {
    name: String,
    file: Bytes,
    max_tokens: usize,
    read: OnceLock<Result<Tokenizer, String>>,
}

impl LazyTokenizer {
    fn get(&self) -> Result<&Tokenizer, PreprocessError> {
        let read = || self.read().map_err(|reason| format!("{}: {reason}", self.name));
        self.read.get_or_init(read).as_ref().map_err(|reason| PreprocessError::Content(reason.clone()))
    }

    fn read(&self) -> Result<Tokenizer, String> {
        let tokenizer = Tokenizer::read(&self.file, self.max_tokens)?;
        let least = tokenizer.least()?;
        if self.max_tokens < least {
            let max_tokens = self.max_tokens;
            return Err(format!("it makes at least {least} tokens of a text, the model takes {max_tokens}"));
        }
        Ok(tokenizer)
    }
}

/// The pipeline of one model.
#[derive(Debug)]
struct Embedder {
    tokenizer: LazyTokenizer,
    max_tokens: usize,
    inputs: Vec<TokenInput>,
    /// The number of texts and of tokens of each run, of a model where they are fixed.
    count: Option<usize>,
    length: Option<usize>,
    /// The position of the output with the vectors.
    output: [usize; 1],
    pool: TokenPooler,
}

impl Embedder {
    /// The bytes of a text that count.
    fn weight(&self, text: &str) -> usize {
        text.len().clamp(1, self.max_tokens * TOKEN_BYTES)
    }

    /// Estimates the tokens of a text without the tokenizer, from 1 to the most that a text may have: a sign is a
    /// token, and so are some letters of a word. Bytes are a worse estimate: sorted by them, a thousand sentences of
    /// this project's documents had 55 % of padding.
    fn estimated_tokens(&self, text: &str) -> usize {
        let (mut tokens, mut letters) = (1, 0);
        for character in text.chars() {
            if tokens >= self.max_tokens {
                break;
            }
            let is_letter = character.is_alphanumeric();
            let begins = if is_letter { letters % TOKEN_LETTERS == 0 } else { !character.is_whitespace() };
            tokens += usize::from(begins);
            letters = if is_letter { letters + 1 } else { 0 };
        }
        tokens
    }
}

impl Pipeline for Embedder {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    /// A text of `max_tokens` tokens: a model with fewer positions is refused at its load, not at the first long text.
    fn sample(&self) -> CallContent {
        const SENTENCE: &str = "The box has 3 cores, and no network. ";
        let text = SENTENCE.repeat((self.max_tokens * SAMPLE_TOKEN_BYTES / SENTENCE.len()).max(1));
        Texts::one(text.as_bytes()).map_or_else(|_| KIND.input.sample(), CallContent::Texts)
    }

    fn divide(&self, content: &CallContent) -> Option<ContentDivision> {
        let CallContent::Texts(texts) = content else { return None };
        let estimated = |(place, text)| (self.estimated_tokens(text), place, text);
        let mut sorted: Vec<(usize, usize, &str)> = texts.iter().enumerate().map(estimated).collect();
        // Texts of like length need little padding.
        sorted.sort_by_key(|(tokens, ..)| *tokens);
        let texts_max = RUN_TEXTS_MAX.min(self.count.unwrap_or(usize::MAX));
        let mut runs: Vec<Vec<(usize, &str)>> = Vec::new();
        let (mut run_tokens, mut run_bytes) = (0, 0);
        for (tokens, place, text) in sorted {
            let bytes = self.weight(text);
            match runs.last_mut() {
                Some(run)
                    if run.len() < texts_max
                        && (run.len() + 1) * bytes.max(run_bytes) <= RUN_BYTES_MAX
                        && run.len() * tokens - run_tokens <= RUN_PADDING_TOKENS.max(run_tokens / 4) =>
                {
                    run.push((place, text));
                    (run_tokens, run_bytes) = (run_tokens + tokens, bytes.max(run_bytes));
                }
                _ => {
                    runs.push(vec![(place, text)]);
                    (run_tokens, run_bytes) = (tokens, bytes);
                }
            }
        }
        if runs.len() < 2 {
            return None;
        }
        let places = runs.iter().flatten().map(|(place, _)| *place).collect();
        let part = |run: &Vec<(usize, &str)>| Texts::new(run.iter().map(|(_, text)| text)).map(CallContent::Texts);
        // Parts of texts within the limits are within them.
        let parts = runs.iter().map(part).collect::<Result<_, _>>().ok()?;
        Some(ContentDivision { parts, places })
    }

    fn prepare(
        &self,
        content: &CallContent,
        _limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        let CallContent::Texts(texts) = content else {
            return Err(PreprocessError::Content("expected a text".to_owned()));
        };
        let bad = |reason: String| PreprocessError::Content(format!("the text cannot be made into tokens: {reason}"));
        let tokenizer = self.tokenizer.get()?;
        let tokens = texts.iter().map(|text| tokenizer.tokens(text)).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        let longest = tokens.iter().map(|tokens| tokens.ids.len()).max().unwrap_or(0).max(1);
        let length = self.length.unwrap_or(longest);
        hold.grow(self.inputs.len() * tokens.len() * length * size_of::<i64>())?;

        let padding = tokenizer.padding();
        let fill = |input: &TokenInput| input.tensor(&tokens, length, padding).map_err(PreprocessError::Content);
        let inputs = self.inputs.iter().map(fill).collect::<Result<Vec<_>, _>>()?;
        let pool = self.pool;
        let postprocess: Postprocess = Box::new(move |outputs| match outputs.as_slice() {
            [output] => pool.results(output, &tokens),
            _ => Err(PostprocessError::Outputs("the run gave no output".to_owned())),
        });
        Ok(PreprocessedInputs { inputs, postprocess: Some(postprocess), picture: None })
    }

    fn outputs(&self) -> &[usize] {
        &self.output
    }

    fn results(&self) -> Option<&'static [&'static str]> {
        Some(RESULTS)
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        let embeddings = Embeddings::of(results)?;
        let rows: Vec<_> = embeddings.rows().collect();
        to_raw_value(&rows).map_err(|error| PostprocessError::Outputs(error.to_string()))
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        if expected.label.is_some() || expected.min_score.is_some() || expected.detections.is_some() {
            return Err(
                "pipeline.text_embedding names no classes and detects no objects: leave `label`, `min_score` and \
                        `detections` out, and compare `outputs`"
                    .to_owned(),
            );
        }
        Embeddings::of(results).map(|_| ()).map_err(|error| error.to_string())
    }
}

/// The results of a call, read.
#[derive(Debug)]
pub struct Embeddings<'a> {
    vectors: std::borrow::Cow<'a, [f32]>,
    tokens: std::borrow::Cow<'a, [i64]>,
    truncated: &'a [bool],
    /// Numbers of each vector.
    dimensions: usize,
}

impl<'a> Embeddings<'a> {
    /// Reads the results of a pipeline of this kind.
    pub fn of(results: &[&'a Tensor]) -> Result<Self, PostprocessError> {
        let wrong = || PostprocessError::Outputs("the results are no vectors of texts".to_owned());
        let [vectors, tokens, truncated] = results else { return Err(wrong()) };
        let dimensions = vectors.shape().get(1).copied().unwrap_or(0);
        Ok(Self {
            vectors: vectors.elements().ok_or_else(wrong)?,
            tokens: tokens.elements().ok_or_else(wrong)?,
            truncated: truncated.bools().ok_or_else(wrong)?,
            dimensions,
        })
    }

    /// The vector of each text, in the order of the call.
    pub fn rows(&self) -> impl Iterator<Item = Embedding<'_>> {
        let vectors = self.vectors.chunks_exact(self.dimensions.max(1));
        vectors.zip(self.tokens.iter().zip(self.truncated)).map(|(embedding, (&tokens, &truncated))| Embedding {
            embedding,
            tokens,
            truncated,
        })
    }

    /// The number of numbers of each vector.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }
}

/// Makes one vector for each text of the model's output.
#[derive(Debug, Clone, Copy)]
struct TokenPooler {
    pooling: Pooling,
    normalize: bool,
}

impl TokenPooler {
    fn results(self, output: &Tensor, texts: &[TokenizedText]) -> Result<Vec<Tensor>, PostprocessError> {
        let wrong = || {
            PostprocessError::Outputs(format!(
                "the output has the shape {:?} for {} texts",
                output.shape(),
                texts.len()
            ))
        };
        let (length, size) = match (self.pooling, output.shape()) {
            (Pooling::None, &[count, size]) if count == texts.len() => (1, size),
            (Pooling::Mean | Pooling::Cls, &[count, length, size]) if count == texts.len() => (length, size),
            _ => return Err(wrong()),
        };
        let values = match output.elements::<f32>() {
            Some(values) => values,
            None => numbers(output, None).map_err(|error| PostprocessError::Outputs(error.to_string()))?.into(),
        };
        if length * size == 0 {
            return Err(wrong());
        }
        let mut vectors = Vec::with_capacity(texts.len() * size);
        for (text, states) in texts.iter().zip(values.chunks_exact(length * size)) {
            let count = if self.pooling == Pooling::Mean { text.ids.len().clamp(1, length) } else { 1 };
            vectors.extend(self.vector(states.get(..count * size).unwrap_or(states), size));
        }
        if vectors.iter().any(|value: &f32| !value.is_finite()) {
            return Err(PostprocessError::Values("a vector has a number that is not finite".to_owned()));
        }

        let tokens = texts.iter().map(|text| i64::try_from(text.ids.len()).unwrap_or(i64::MAX)).collect();
        let truncated = texts.iter().map(|text| text.truncated).collect();
        let tensors = [
            Tensor::from_vec(vec![texts.len(), size], vectors),
            Tensor::from_vec::<i64>(vec![texts.len()], tokens),
            Tensor::from_vec::<bool>(vec![texts.len()], truncated),
        ];
        tensors.into_iter().collect::<Result<_, _>>().map_err(|error| PostprocessError::Outputs(error.to_string()))
    }

    /// The mean of vectors of `size` numbers each.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand tokens")]
    fn vector(self, states: &[f32], size: usize) -> Vec<f32> {
        let mut vector = vec![0.0_f32; size];
        for state in states.chunks_exact(size) {
            for (sum, value) in vector.iter_mut().zip(state) {
                *sum += value;
            }
        }
        let mut divisor = (states.len() / size) as f32;
        if self.normalize {
            // The length of the sum: the mean cancels out.
            divisor = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-12);
        }
        for value in &mut vector {
            *value /= divisor;
        }
        vector
    }
}

fn rows(embeddings: &Value) -> Vec<PrintedRow> {
    let row = |embedding: &Value| {
        let numbers = embedding.get("embedding").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let first: Vec<_> = numbers.iter().take(4).map(ToString::to_string).collect();
        let tokens = embedding.get("tokens").unwrap_or(&Value::Null);
        let cut = if embedding.get("truncated") == Some(&Value::Bool(true)) { ", truncated" } else { "" };
        PrintedRow {
            score: None,
            text: format!("{} numbers of {tokens} tokens{cut}: {} ...", numbers.len(), first.join(" ")),
        }
    };
    embeddings.as_array().into_iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests;
