//! Texts to tokens, by a `tokenizer.json` as Hugging Face writes it. Only this file knows the crate `tokenizers`.
//!
//! The file comes with a model from anywhere: a mistake in it, and a panic of the library, refuses the model or fails
//! the text, and nothing else.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{Tokenizer as Library, TruncationParams};

use super::tokenizer_limits;

/// A tokenizer that cuts texts at a number of tokens.
pub struct Tokenizer(Library);

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokenizer")
    }
}

/// The tokens of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedText {
    pub ids: Vec<u32>,
    /// 0 or 1: the sentence of a pair that each token belongs to.
    pub types: Vec<u32>,
    /// True when the text has more tokens than these.
    pub truncated: bool,
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`. Texts become at most `max_tokens` tokens, with those that the tokenizer
    /// adds at the beginning and the end; a padding that the file sets is switched off.
    pub fn read(file: &[u8], max_tokens: usize) -> Result<Self, String> {
        if let Some(reason) = tokenizer_limits::refusal(file) {
            return Err(reason);
        }
        let read = || {
            let mut library = Library::from_bytes(file).map_err(|error| error.to_string())?;
            library.with_padding(None);
            let truncation = TruncationParams { max_length: max_tokens, ..TruncationParams::default() };
            library.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
            Ok(Self(library))
        };
        guarded(read)?
    }

    /// The tokens of a text.
    pub fn tokens(&self, text: &str) -> Result<TokenizedText, String> {
        let encode = || self.0.encode_fast(text, true).map_err(|error| error.to_string());
        let encoding = guarded(encode)??;
        let truncated = !encoding.get_overflowing().is_empty();
        Ok(TokenizedText { ids: encoding.get_ids().to_vec(), types: encoding.get_type_ids().to_vec(), truncated })
    }

    /// The id of the padding; 0 in a file without one.
    pub fn padding(&self) -> u32 {
        ["[PAD]", "<pad>"].iter().find_map(|token| self.0.token_to_id(token)).unwrap_or(0)
    }

    /// The least number of tokens for which a text is cut: those that are added, and one.
    pub fn least(&self) -> Result<usize, String> {
        let added =
            || self.0.get_post_processor().map_or(0, |post| tokenizers::PostProcessor::added_tokens(post, false));
        Ok(guarded(added)?.saturating_add(1))
    }
}

/// Runs code of the library. Nothing of it is used after a panic.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| "the library panicked".to_owned())
}

/// Reads any bytes as a tokenizer, and tokens of a text with it, for the fuzzers; true for a tokenizer. The fuzzer's
/// panic hook must not abort, because a panic of the library is an error here.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_tokenizer(data: &[u8]) -> bool {
    const MAX_TOKENS: usize = 8;
    let Ok(tokenizer) = Tokenizer::read(data, MAX_TOKENS) else { return false };
    if tokenizer.least().is_ok_and(|least| least > MAX_TOKENS) {
        return true;
    }
    for text in ["", "a", "Grüße, 世界! 12.50 €", "the the the the the the the the the the the the"] {
        if let Ok(tokens) = tokenizer.tokens(text) {
            assert!(tokens.ids.len() <= MAX_TOKENS && tokens.types.len() == tokens.ids.len(), "{tokens:?}");
        }
    }
    true
}
