//! The metrics of the certificate for `https://` and of handshakes.

use ledge_part::metrics::{family, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::TlsStatus;

#[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &TlsStatus) -> Result<(), std::fmt::Error> {
    if let Some(certificate) = &status.certificate {
        single(
            encoder,
            "http_certificate_expiry_timestamp_seconds",
            "When the certificate for https:// ends, in seconds since the Unix epoch",
            &ConstGauge::new(certificate.not_after_ms as f64 / 1e3),
        )?;
        single(
            encoder,
            "http_certificate_self_signed",
            "1 while the certificate for https:// is one that this box made itself",
            &ConstGauge::new(i64::from(certificate.self_signed)),
        )?;
    }
    if let Some(due_ms) = status.crl_due_ms {
        single(
            encoder,
            "http_client_crl_next_update_timestamp_seconds",
            "When the next list of revoked client certificates was due, in seconds since the Unix epoch",
            &ConstGauge::new(due_ms as f64 / 1e3),
        )?;
    }
    single(
        encoder,
        "http_tls_files_refused",
        "1 while the files of http.tls cannot be used as they are; a certificate of before is shown on",
        &ConstGauge::new(i64::from(status.error.is_some())),
    )?;
    let counts = status.handshakes;
    let ends = [
        ("accepted", counts.accepted),
        ("refused", counts.refused),
        ("failed", counts.failed),
        ("timed_out", counts.timed_out),
        ("not_tls", counts.not_tls),
        ("too_many", counts.too_many),
        ("unavailable", counts.unavailable),
    ];
    let samples = ends.map(|(end, count)| (vec![("result", end.to_owned())], ConstCounter::new(count)));
    family(encoder, "http_tls_handshakes", "TLS handshakes since the start, by how they ended", samples)
}
