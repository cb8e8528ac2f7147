//! Digits, and the letters that a model reads in their place.

/// The digit that a character is.
pub(super) fn digit(char: char) -> Option<u8> {
    char.to_digit(10).and_then(|digit| u8::try_from(digit).ok())
}

/// The digit that a character is or was mistaken for.
pub(super) fn likely_digit(char: char) -> Option<u8> {
    match char {
        'O' | 'o' | 'D' | 'Q' => Some(0),
        'I' | 'l' | 'i' | '|' | '!' => Some(1),
        'Z' | 'z' => Some(2),
        'S' | 's' => Some(5),
        'B' => Some(8),
        other => digit(other),
    }
}

/// A run of likely digits from `start` on: the digits, and the number of them that were read as digits. At most `most`.
pub(super) fn run(chars: &[char], start: usize, most: usize) -> (Vec<u8>, usize) {
    let rest = chars.get(start..).unwrap_or_default();
    let mut digits: Vec<u8> = rest.iter().map_while(|char| likely_digit(*char)).take(most).collect();
    // The D of "12.50DKK" begins a word.
    if digits.len() < most && rest.get(digits.len()).is_some_and(|next| next.is_alphabetic()) {
        let word = rest.iter().take(digits.len()).rev().take_while(|char| char.is_alphabetic()).count();
        digits.truncate(digits.len() - word);
    }
    let sure = rest.iter().take(digits.len()).filter(|char| digit(**char).is_some()).count();
    (digits, sure)
}

/// The number that digits stand for; `None` above `u32`.
pub(super) fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0_u32, |number, digit| number.checked_mul(10)?.checked_add(u32::from(*digit)))
}
