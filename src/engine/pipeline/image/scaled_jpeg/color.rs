//! Converts lines of samples into RGB (ITU-T T.871, section 7).

use super::band::McuRowBand;

/// Converts the lines of gray, or of luma and two colours, into lines of pixels. Samples behind the end of a line are
/// left out.
pub(super) fn convert<'p>(bands: &[McuRowBand], lines: impl Iterator<Item = &'p mut [u8]>) {
    match bands {
        [gray] => {
            for (line, gray) in lines.zip(gray.lines()) {
                for (pixel, gray) in line.as_chunks_mut().0.iter_mut().zip(gray) {
                    *pixel = [*gray; 3];
                }
            }
        }
        [luma, blue, red] => {
            let samples = luma.lines().zip(blue.lines()).zip(red.lines());
            for (line, ((luma, blue), red)) in lines.zip(samples) {
                let samples = luma.iter().zip(blue).zip(red);
                for (pixel, ((luma, blue), red)) in line.as_chunks_mut().0.iter_mut().zip(samples) {
                    *pixel = rgb(*luma, *blue, *red);
                }
            }
        }
        _ => {}
    }
}

/// The factors are in 1/2^14.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "clamped to 8 bits")]
fn rgb(luma: u8, blue: u8, red: u8) -> [u8; 3] {
    let (luma, blue, red) = (i32::from(luma), i32::from(blue) - 128, i32::from(red) - 128);
    let channel = |difference: i32| (luma + ((difference + (1 << 13)) >> 14)).clamp(0, 255) as u8;
    [channel(22_970 * red), channel(-5_638 * blue - 11_700 * red), channel(29_032 * blue)]
}
