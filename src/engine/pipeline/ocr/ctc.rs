//! The characters of a line, from a model's scores at each step: the most likely one each, repetitions and blanks left
//! out ("Connectionist Temporal Classification", Graves et al., 2006).

use serde::{Deserialize, Serialize};

use super::geometry::coordinate;

/// The characters of a model, in the order of its classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CtcAlphabet {
    /// The blank first.
    characters: Vec<String>,
}

impl CtcAlphabet {
    /// The number of characters, the blank included.
    pub fn count(&self) -> usize {
        self.characters.len()
    }
}

impl CtcAlphabet {
    /// The characters of `PaddleOCR`'s models, one a line, as their ONNX metadata has them under `character`. The blank
    /// is the class before them, and the space the one behind.
    pub fn from_lines(lines: &str) -> Self {
        let lines = lines.strip_suffix('\n').unwrap_or(lines);
        let characters = lines.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned());
        let blank = std::iter::once(String::new());
        Self { characters: blank.chain(characters).chain([" ".to_owned()]).collect() }
    }

    /// The number of classes, the blank included.
    pub fn classes(&self) -> usize {
        self.characters.len()
    }
}

/// A text that was read, with the places of its characters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DecodedText {
    pub text: String,
    /// The mean of the characters' scores; 0 without any.
    pub confidence: f32,
    /// The middle of each `char` of the text, as a share of the line.
    pub places: Vec<f32>,
    /// The highest score of each `char` among its steps.
    pub scores: Vec<f32>,
}

impl DecodedText {
    /// Returns true if its numbers are shares, with a place and a score for each character.
    pub fn is_sound(&self) -> bool {
        let is_share = |share: &f32| (0.0..=1.0).contains(share);
        let count = self.text.chars().count();
        let fits = |shares: &[f32]| shares.len() == count && shares.iter().all(is_share);
        is_share(&self.confidence) && fits(&self.places) && fits(&self.scores)
    }

    /// The surer one of two readings of a line, this one if they are equal.
    #[must_use]
    pub fn or_surer(self, other: Self) -> Self {
        if other.confidence > self.confidence { other } else { self }
    }
}

/// The lines of a batch, from the probabilities in the model's output `[N, steps, classes]`. `filled` are the shares of
/// the steps that the lines take; text that is read outside of them is left out. `None` for another shape, and for a
/// number of values that does not fit it.
pub fn decode(shape: &[usize], scores: &[f32], filled: &[f32], alphabet: &CtcAlphabet) -> Option<Vec<DecodedText>> {
    let [lines, steps, classes] = *shape else { return None };
    let per_line = steps.checked_mul(classes)?;
    let fits = lines == filled.len() && classes == alphabet.classes() && per_line.checked_mul(lines)? == scores.len();
    if !fits || per_line == 0 {
        return None;
    }
    let lines = scores.chunks_exact(per_line).zip(filled);
    Some(lines.map(|(scores, filled)| decode_line(scores, steps, *filled, alphabet)).collect())
}

fn decode_line(scores: &[f32], steps: usize, filled: f32, alphabet: &CtcAlphabet) -> DecodedText {
    let (mut reading, mut sum, mut taken) = (DecodedText::default(), 0.0, 0_u16);
    let mut before = 0;
    for (step, scores) in scores.chunks_exact(alphabet.classes()).enumerate() {
        let place = (coordinate(step) + 0.5) / coordinate(steps) / filled;
        // A character at the end of a line may have its step half a step behind it.
        if place > 1.0 + 0.5 / (coordinate(steps) * filled) {
            break;
        }
        let (class, score) = best(scores);
        let is_new = class != before;
        before = class;
        let Some(character) = alphabet.characters.get(class).filter(|_| class != 0) else { continue };
        let share = if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
        if !is_new {
            if let Some(known) = reading.scores.last_mut().filter(|known| **known < share) {
                *known = share;
            }
            continue;
        }
        reading.text.push_str(character);
        for _ in character.chars() {
            reading.places.push(place.min(1.0));
            reading.scores.push(share);
        }
        sum += score;
        taken = taken.saturating_add(1);
    }
    // The sum of scores of both infinities is no number.
    let mean = if taken > 0 && !f32::is_nan(sum) { sum / f32::from(taken) } else { 0.0 };
    reading.confidence = mean.clamp(0.0, 1.0);
    reading
}

/// The class with the highest score, the first of equal ones; the blank if none is a number.
fn best(scores: &[f32]) -> (usize, f32) {
    // The maximum is computed in lanes, of which the compiler handles eight at a time. Its position is searched for
    // afterwards.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = scores.as_chunks::<16>();
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = if *score > *lane { *score } else { *lane };
        }
    }
    let highest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    #[expect(clippy::float_cmp, reason = "it is one of these scores")]
    let class = scores.iter().position(|score| *score == highest);
    class.map_or((0, 0.0), |class| (class, highest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alphabet() -> CtcAlphabet {
        CtcAlphabet::from_lines("a\nb\nc\n")
    }

    /// The scores of steps with one class each: the class has the score, and the others share the rest.
    fn scores(steps: &[(usize, f32)]) -> Vec<f32> {
        steps.iter().flat_map(|&(class, score)| (0..5).map(move |c| if c == class { score } else { 0.01 })).collect()
    }

    fn read(steps: &[(usize, f32)]) -> DecodedText {
        let [reading] = decode(&[1, steps.len(), 5], &scores(steps), &[1.0], &alphabet()).unwrap().try_into().unwrap();
        reading
    }

    #[test]
    fn repetitions_are_one_character_and_a_blank_divides_them() {
        let read = read(&[(1, 0.9), (1, 0.5), (0, 0.9), (1, 0.7), (4, 0.8), (3, 1.0)]);
        assert_eq!(read.text, "aa c");
        assert!((read.confidence - 0.85).abs() < 1e-6, "the first step of each: {read:?}");
        assert_eq!(read.scores, [0.9, 0.7, 0.8, 1.0]);
        let places = [0.5, 3.5, 4.5, 5.5].map(|step: f32| step / 6.0);
        assert_eq!(read.places, places);
    }

    #[test]
    fn the_padding_beside_a_line_is_not_read() {
        let steps = scores(&[(1, 0.9), (2, 0.9), (0, 0.9), (3, 0.9), (3, 0.9), (3, 0.9), (1, 0.9), (1, 0.9)]);
        let [whole, half] = [1.0, 0.3].map(|filled| decode(&[1, 8, 5], &steps, &[filled], &alphabet()).unwrap());
        assert_eq!((whole[0].text.as_str(), half[0].text.as_str()), ("abca", "ab"));
    }

    #[test]
    fn a_shape_that_does_not_fit_is_refused() {
        for shape in [&[1, 2, 5][..], &[2, 5], &[1, 1, 4], &[2, 1, 5], &[1, 0, 5], &[1, usize::MAX, 5]] {
            assert_eq!(decode(shape, &[0.0; 5], &[1.0], &alphabet()), None, "{shape:?}");
        }
    }

    #[test]
    fn scores_that_are_no_numbers_read_nothing() {
        let read = decode(&[1, 2, 5], &[f32::NAN; 10], &[1.0], &alphabet()).unwrap();
        assert_eq!(read, [DecodedText::default()]);
    }

    #[test]
    fn lines_of_the_metadata_may_end_as_on_windows() {
        assert_eq!(CtcAlphabet::from_lines("a\r\nb\r\n"), CtcAlphabet::from_lines("a\nb"));
        assert_eq!(CtcAlphabet::from_lines("a\n\u{3000}\n").classes(), 4);
    }

    proptest! {
        #[test]
        fn it_reads_as_the_rule_says(steps in proptest::collection::vec(0_usize..5, 1..40)) {
            let mut deduplicated = steps.clone();
            deduplicated.dedup();
            let expected: String = deduplicated.iter().filter_map(|&class| [None, Some('a'), Some('b'), Some('c'), Some(' ')][class]).collect();
            let found = read(&steps.iter().map(|&class| (class, 0.9)).collect::<Vec<_>>());
            prop_assert_eq!(found.places.len(), expected.chars().count());
            prop_assert!(found.is_sound());
            prop_assert!(found.places.is_sorted());
            prop_assert_eq!(found.text, expected);
        }

        #[test]
        fn any_scores_are_read(scores in proptest::collection::vec(any::<f32>(), 20..=20), filled in 0.0_f32..=1.0) {
            for read in decode(&[2, 2, 5], &scores, &[filled, 1.0], &alphabet()).unwrap() {
                prop_assert!(read.is_sound(), "{read:?}");
            }
        }
    }
}
