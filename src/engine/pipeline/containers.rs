//! Reads the structure of image files before a decoder gets them.
//!
//! The decoders accept a file that was cut off, and some allocate any size that a header claims. Both are checked here
//! by reading only the container, without decoding a pixel and without an allocation.

/// The chunk or segment runs past the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TruncatedImageFile;

/// The bytes of a JPEG up to its end marker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JpegScans<'a> {
    /// The bytes before the end marker. Bytes after it do not belong to the image.
    pub(super) bytes: &'a [u8],
    /// Set if there is an end marker.
    pub(super) is_ended: bool,
}

/// The most zeros at the end of a JPEG without an end marker that may be data. More zeros fill a buffer, and would be
/// decoded as a picture.
const TRAILING_ZEROS_MAX: usize = 2;

/// Walks the segments of a JPEG (ITU-T T.81, section B.1).
///
/// Thumbnails inside a segment have their own end markers, so segments are skipped and not searched. A file may lack
/// its end marker, as those of some cameras do, if a scan for every coefficient has begun. The decoder finds out
/// whether that scan is complete.
pub(super) fn jpeg_scans(bytes: &[u8]) -> Result<JpegScans<'_>, TruncatedImageFile> {
    let mut coverage = ScanCoverage::default();
    let mut at = 2;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0xFF)) {
        at += found + 1;
        match bytes.get(at) {
            None => break,
            // A fill byte: the marker's code may be the next one.
            Some(0xFF) => {}
            // A stuffed zero, or a marker without a segment.
            Some(0x00 | 0x01 | 0xD0..=0xD8) => at += 1,
            Some(0xD9) => {
                let bytes = bytes.get(..at - 1).unwrap_or_default();
                return Ok(JpegScans { bytes, is_ended: true });
            }
            Some(&code) => {
                let length = bytes.get(at + 1..).and_then(<[u8]>::first_chunk);
                let Some(length) = length.map(|length| usize::from(u16::from_be_bytes(*length))) else { break };
                let Some(body) = bytes.get(at + 3..at + 1 + length) else { break };
                coverage.record(code, body);
                at += 1 + length;
            }
        }
    }

    if !coverage.is_complete() {
        return Err(TruncatedImageFile);
    }
    let is_data = |byte: &u8| *byte != 0;
    let zeros = bytes.iter().rposition(is_data).map_or(0, |last| bytes.len() - last - 1);
    let end = bytes.len() - zeros.saturating_sub(TRAILING_ZEROS_MAX);
    Ok(JpegScans { bytes: bytes.get(..end).unwrap_or(bytes), is_ended: false })
}

/// The coefficients of a JPEG that the headers of its scans announce.
#[derive(Default)]
struct ScanCoverage {
    is_progressive: bool,
    /// For each component its id, and the low bits of each coefficient that no scan has announced; at first all bits.
    components: [Option<(u8, [u8; 64])>; 4],
}

impl ScanCoverage {
    /// Records the header of a frame or a scan.
    fn record(&mut self, code: u8, body: &[u8]) {
        match code {
            // SOF0 to SOF2: precision, height, width, and three bytes a component.
            0xC0..=0xC2 => {
                self.is_progressive = code == 0xC2;
                let ids = body.get(6..).unwrap_or_default().chunks_exact(3);
                for (component, id) in self.components.iter_mut().zip(ids) {
                    *component = id.first().map(|id| (*id, [u8::MAX; 64]));
                }
            }
            // SOS: two bytes a component, the first and the last coefficient, and the bits before and after.
            0xDA => {
                let Some((&count, rest)) = body.split_first() else { return };
                let Some((ids, rest)) = rest.split_at_checked(usize::from(count) * 2) else { return };
                let (first, last, low) = match rest {
                    &[first, last, bits, ..] if self.is_progressive => (first, last, bits & 0x0F),
                    _ => (0, 63, 0),
                };
                for id in ids.chunks_exact(2).filter_map(<[u8]>::first) {
                    let known = self.components.iter_mut().flatten().find(|(known, _)| known == id);
                    let band = known.and_then(|(_, left)| left.get_mut(usize::from(first)..=usize::from(last)));
                    band.unwrap_or_default().fill(low);
                }
            }
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        let mut components = self.components.iter().flatten().peekable();
        components.peek().is_some() && components.all(|(_, left)| left.iter().all(|bits| *bits == 0))
    }
}

/// The facts in the chunks of a WebP file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WebP<'a> {
    /// The RIFF container, without bytes after it.
    pub(super) file: &'a [u8],
    /// The most pixels that a canvas or frame in the file claims, with its width and height.
    pub(super) largest: (u64, u32, u32),
    /// The Exif data, from its TIFF header on.
    pub(super) exif: Option<&'a [u8]>,
}

/// Walks the chunks of a WebP file (RFC 9649): all of them end inside the file.
pub(super) fn inspect_webp(bytes: &[u8]) -> Result<WebP<'_>, TruncatedImageFile> {
    let size =
        bytes.get(4..).and_then(<[u8]>::first_chunk).map(|size| u32::from_le_bytes(*size)).ok_or(TruncatedImageFile)?;
    let file =
        usize::try_from(size).ok().and_then(|size| bytes.get(..size.checked_add(8)?)).ok_or(TruncatedImageFile)?;
    let mut found = WebP { file, ..WebP::default() };
    for chunk in RiffChunks(file.get(12..).ok_or(TruncatedImageFile)?) {
        let (id, body) = chunk?;
        found.record_size(id, body);
        match &id {
            b"ANMF" => {
                for chunk in RiffChunks(body.get(16..).ok_or(TruncatedImageFile)?) {
                    let (id, body) = chunk?;
                    found.record_size(id, body);
                }
            }
            // Some encoders keep the prefix of Exif data in a JPEG.
            b"EXIF" if found.exif.is_none() => found.exif = Some(body.strip_prefix(b"Exif\0\0").unwrap_or(body)),
            _ => {}
        }
    }
    Ok(found)
}

impl WebP<'_> {
    /// Records the size that a chunk claims, if it claims one.
    fn record_size(&mut self, id: [u8; 4], body: &[u8]) {
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

/// The chunks of a RIFF list: name and body. A rest that is too short for a chunk's header is ignored.
struct RiffChunks<'a>(&'a [u8]);

impl<'a> Iterator for RiffChunks<'a> {
    type Item = Result<([u8; 4], &'a [u8]), TruncatedImageFile>;

    fn next(&mut self) -> Option<Self::Item> {
        let (id, rest) = self.0.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let Some((body, rest)) = usize::try_from(u32::from_le_bytes(*size)).ok().and_then(|s| rest.split_at_checked(s))
        else {
            self.0 = &[];
            return Some(Err(TruncatedImageFile));
        };
        // A body of odd length is padded with one byte, which the last chunk may lack.
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
        let length = |bytes| jpeg_scans(bytes).map(|scans| scans.bytes.len());
        let thumbnail = b"\xFF\xD8\xFF\xE1\x00\x04\xFF\xD9\xFF\xD9";
        assert_eq!(length(thumbnail), Ok(8));
        assert_eq!(length(&thumbnail[..8]), Err(TruncatedImageFile));
        assert_eq!(length(b"\xFF\xD8\xFF\xFF\xFF\xD9 and more"), Ok(4));
        assert_eq!(length(b"\xFF\xD8\xFF\xE1\xFF"), Err(TruncatedImageFile));
    }

    #[test]
    fn a_jpeg_may_lack_its_end_marker_once_a_scan_for_every_coefficient_has_begun() {
        let frame =
            |code: u8| [b"\xFF\xD8\xFF", &[code][..], b"\0\x0E\x08\0\x08\0\x08\x02\x01\x11\0\x02\x11\0"].concat();
        let scan = |ids: &[u8], bits: [u8; 3]| {
            let count = u8::try_from(ids.len()).unwrap();
            let components: Vec<u8> = ids.iter().flat_map(|id| [*id, 0]).collect();
            [b"\xFF\xDA\0", &[6 + 2 * count, count][..], &components, &bits, b"data"].concat()
        };
        let may_end = |code, scans: &[Vec<u8>]| jpeg_scans(&[frame(code), scans.concat()].concat()).is_ok();
        assert!(!may_end(0xC0, &[]));
        assert!(!may_end(0xC0, &[scan(&[1], [0, 63, 0])]), "a component has no scan");
        assert!(may_end(0xC0, &[scan(&[1], [0, 63, 0]), scan(&[2], [0, 63, 0])]));
        assert!(may_end(0xC1, &[scan(&[1, 2], [0, 0, 0])]), "a sequential scan has all coefficients, whatever it says");
        let whole =
            [scan(&[1, 2], [0, 0, 1]), scan(&[1], [1, 63, 2]), scan(&[2], [1, 63, 0]), scan(&[1, 2], [0, 0, 0x10])];
        assert!(!may_end(0xC2, &whole), "the last two bits of component 1 are to come");
        assert!(may_end(0xC2, &[&whole[..], &[scan(&[1], [1, 63, 0x20])]].concat()));
    }

    #[test]
    fn zeros_that_fill_up_a_buffer_are_no_data() {
        let whole = b"\xFF\xD8\xFF\xC0\0\x0B\x08\0\x08\0\x08\x01\x01\x11\0\xFF\xDA\0\x08\x01\x01\0\0\x3F\0data";
        let filled = [&whole[..], &[0; 100]].concat();
        assert_eq!(jpeg_scans(&filled).unwrap().bytes, &filled[..whole.len() + TRAILING_ZEROS_MAX]);
        let ended = [&filled[..], b"\xFF\xD9"].concat();
        assert_eq!(jpeg_scans(&ended).unwrap().bytes, filled, "data, for all that is known");
    }

    #[test]
    fn a_webp_frame_larger_than_its_canvas_is_noticed() {
        let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
        file.extend_from_slice(b"VP8X\x0A\0\0\0\0\0\0\0\x09\0\0\x09\0\0");
        file.extend_from_slice(b"VP8 \x0A\0\0\0\0\0\0\x9D\x01\x2A\xFF\x3F\xFF\x3F");
        let size = u32::try_from(file.len() - 8).unwrap();
        file[4..8].copy_from_slice(&size.to_le_bytes());
        assert_eq!(inspect_webp(&file).unwrap().largest, (16383 * 16383, 16383, 16383));
        assert_eq!(inspect_webp(&file[..file.len() - 1]), Err(TruncatedImageFile));
    }

    #[test]
    fn a_webp_chunk_that_claims_gigabytes_is_cut_off() {
        assert_eq!(inspect_webp(b"RIFF\x0C\0\0\0WEBPEXIF\xFF\xFF\xFF\xFF"), Err(TruncatedImageFile));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = jpeg_scans(&bytes);
            let _ = jpeg_scans(&[b"\xFF\xD8\xFF\xC2", &bytes[..]].concat());
            let _ = jpeg_scans(&[b"\xFF\xD8\xFF\xDA", &bytes[..]].concat());
            let _ = inspect_webp(&bytes);
            let _ = RiffChunks(&bytes).count();
        }
    }
}
