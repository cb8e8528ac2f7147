//! What image files say about themselves, read before a decoder is trusted with them.
//!
//! The decoders draw what they have of a file that was cut off, and some allocate what a header claims. Both are
//! settled here by walking the container alone, without a pixel decoded and without an allocation.

/// The chunk or segment runs past the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CutOff;

/// The length of a JPEG up to and including its end marker (ITU-T T.81, section B.1); what follows is not the image's.
///
/// Thumbnails inside a segment have end markers of their own, so segments are stepped over and not searched.
pub(super) fn jpeg_length(bytes: &[u8]) -> Result<usize, CutOff> {
    let mut at = 2;
    loop {
        at += bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0xFF)).ok_or(CutOff)? + 1;
        match *bytes.get(at).ok_or(CutOff)? {
            // A fill byte: the marker's code may be the next one.
            0xFF => {}
            // A stuffed zero, or a marker that stands alone.
            0x00 | 0x01 | 0xD0..=0xD8 => at += 1,
            0xD9 => return Ok(at + 1),
            _ => {
                let length = bytes.get(at + 1..).and_then(<[u8]>::first_chunk).ok_or(CutOff)?;
                at += 1 + usize::from(u16::from_be_bytes(*length));
            }
        }
    }
}

/// What the chunks of a WebP file say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WebP<'a> {
    /// The file without what may follow the RIFF container.
    pub(super) file: &'a [u8],
    /// The largest number of pixels that any canvas or frame in the file claims, with its width and height.
    pub(super) largest: (u64, u32, u32),
    /// The Exif data, from its TIFF header on.
    pub(super) exif: Option<&'a [u8]>,
}

/// Walks the chunks of a WebP file (RFC 9649): all of them end inside the file.
pub(super) fn inspect_webp(bytes: &[u8]) -> Result<WebP<'_>, CutOff> {
    let size = bytes.get(4..).and_then(<[u8]>::first_chunk).map(|size| u32::from_le_bytes(*size)).ok_or(CutOff)?;
    let file = usize::try_from(size).ok().and_then(|size| bytes.get(..size.checked_add(8)?)).ok_or(CutOff)?;
    let mut found = WebP { file, ..WebP::default() };
    for chunk in Chunks(file.get(12..).ok_or(CutOff)?) {
        let (id, body) = chunk?;
        found.note_size(id, body);
        match &id {
            b"ANMF" => {
                for chunk in Chunks(body.get(16..).ok_or(CutOff)?) {
                    let (id, body) = chunk?;
                    found.note_size(id, body);
                }
            }
            // Some writers keep the prefix that Exif has inside a JPEG.
            b"EXIF" if found.exif.is_none() => found.exif = Some(body.strip_prefix(b"Exif\0\0").unwrap_or(body)),
            _ => {}
        }
    }
    Ok(found)
}

impl WebP<'_> {
    /// Takes note of the size that a chunk claims, if it is one that claims a size.
    fn note_size(&mut self, id: [u8; 4], body: &[u8]) {
        let Some((width, height)) = size_of_webp_chunk(id, body) else { return };
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.largest.0 {
            self.largest = (pixels, width, height);
        }
    }
}

/// Width and height in the header of a canvas (VP8X), a lossy (VP8) or a lossless (VP8L) frame.
fn size_of_webp_chunk(id: [u8; 4], body: &[u8]) -> Option<(u32, u32)> {
    match &id {
        b"VP8X" => {
            let &[w0, w1, w2, h0, h1, h2] = body.get(4..)?.first_chunk()?;
            Some((u32::from_le_bytes([w0, w1, w2, 0]) + 1, u32::from_le_bytes([h0, h1, h2, 0]) + 1))
        }
        b"VP8 " => {
            let &[w0, w1, h0, h1] = body.get(6..)?.first_chunk()?;
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3FFF);
            Some((side(w0, w1), side(h0, h1)))
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(*body.get(1..)?.first_chunk()?);
            Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
        }
        _ => None,
    }
}

/// The chunks of a RIFF list: name and body. A remainder too short for a chunk's header is not one.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<([u8; 4], &'a [u8]), CutOff>;

    fn next(&mut self) -> Option<Self::Item> {
        let (id, rest) = self.0.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let Some((body, rest)) = usize::try_from(u32::from_le_bytes(*size)).ok().and_then(|s| rest.split_at_checked(s))
        else {
            self.0 = &[];
            return Some(Err(CutOff));
        };
        // Bodies of odd length are padded with one byte, which the last one may lack.
        self.0 = if body.len() % 2 == 1 { rest.get(1..).unwrap_or_default() } else { rest };
        Some(Ok((*id, body)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_thumbnails_end_marker_does_not_end_the_jpeg() {
        let thumbnail = b"\xFF\xD8\xFF\xE1\x00\x04\xFF\xD9\xFF\xD9";
        assert_eq!(jpeg_length(thumbnail), Ok(10));
        assert_eq!(jpeg_length(&thumbnail[..8]), Err(CutOff));
        assert_eq!(jpeg_length(b"\xFF\xD8\xFF\xFF\xFF\xD9 and more"), Ok(6));
        assert_eq!(jpeg_length(b"\xFF\xD8\xFF\xE1\xFF"), Err(CutOff));
    }

    #[test]
    fn a_webp_frame_larger_than_its_canvas_is_noticed() {
        let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
        file.extend_from_slice(b"VP8X\x0A\0\0\0\0\0\0\0\x09\0\0\x09\0\0");
        file.extend_from_slice(b"VP8 \x0A\0\0\0\0\0\0\x9D\x01\x2A\xFF\x3F\xFF\x3F");
        let size = u32::try_from(file.len() - 8).unwrap();
        file[4..8].copy_from_slice(&size.to_le_bytes());
        assert_eq!(inspect_webp(&file).unwrap().largest, (16383 * 16383, 16383, 16383));
        assert_eq!(inspect_webp(&file[..file.len() - 1]), Err(CutOff));
    }

    #[test]
    fn a_webp_chunk_that_claims_gigabytes_is_cut_off() {
        assert_eq!(inspect_webp(b"RIFF\x0C\0\0\0WEBPEXIF\xFF\xFF\xFF\xFF"), Err(CutOff));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = jpeg_length(&bytes);
            let _ = inspect_webp(&bytes);
            let _ = Chunks(&bytes).count();
        }
    }
}
