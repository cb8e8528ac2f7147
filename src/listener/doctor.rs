//! The findings about TLS, its files and certificate.

use ledge_base::clock;
use ledge_part::check::{Finding, FindingMeasure};

use crate::tls::{EXPIRY_WARNING_PERIOD, InspectedTlsFiles, ServerTlsError, TlsSource};

/// Checks that TLS can be served; `None` where it is not configured. `name` is that of the check.
pub fn tls(name: &str, source: &TlsSource) -> Option<Finding> {
    let found = source.inspect()?;
    Some(judge(name, source, found, clock::FLOOR.now_millis()))
}

fn judge(name: &str, source: &TlsSource, found: Result<InspectedTlsFiles, ServerTlsError>, now_ms: u64) -> Finding {
    let InspectedTlsFiles { certificate, crl_due_ms, .. } = match found {
        Ok(found) => found,
        Err(error) if source.is_self_signed() => {
            return Finding::warn(name, error.to_string(), "the server makes a certificate when it starts");
        }
        Err(error) => {
            let advice = "correct it; until then a running server keeps the previous certificate, and a server that \
                          starts does not serve https://";
            return Finding::fail(name, error.to_string(), advice);
        }
    };

    let until = clock::rfc3339(certificate.not_after_ms);
    let detail = format!("a certificate for {}, until {until}", certificate.shown_names());
    let left_ms = certificate.not_after_ms.saturating_sub(now_ms);
    let finding = if left_ms == 0 {
        Finding::fail(name, format!("{detail}: it has expired"), "renew the certificate: callers refuse it")
    } else if now_ms < certificate.not_before_ms {
        let from = clock::rfc3339(certificate.not_before_ms);
        let advice = "correct the clock of this machine, or install a certificate that is valid now; until then a \
                      running server keeps the previous certificate";
        Finding::fail(name, format!("{detail}: it is not valid before {from}"), advice)
    } else if u128::from(left_ms) < EXPIRY_WARNING_PERIOD.as_millis() {
        Finding::warn(
            name,
            detail,
            "renew the certificate: it expires soon; the server reads new files without a restart",
        )
    } else if source.is_self_signed() {
        let advice = format!(
            "the certificate is self-signed: compare the fingerprint {} on the client, and set http.tls.certificate_file \
             to a certificate of your authority",
            certificate.shown_fingerprint()
        );
        Finding::warn(name, detail, advice)
    } else if let Some(due_ms) = crl_due_ms.filter(|due_ms| *due_ms <= now_ms) {
        let detail = format!(
            "{detail}; the list of revoked certificates should have been renewed at {}",
            clock::rfc3339(due_ms)
        );
        Finding::warn(name, detail, "renew http.tls.client_crl_file: later revocations are not known here")
    } else {
        Finding::ok(name, detail)
    };
    finding.measured(FindingMeasure::SecondsLeft(left_ms / 1000))
}
