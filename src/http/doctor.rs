//! The findings about TLS, its files and certificate, and about access from the command line.

use ledge_base::clock;
use ledge_part::check::Check;
use ledge_part::section::DoctorContext;

use crate::config::{HttpConfig, ListenAddress};
use crate::tls::{self, EXPIRY_WARNING_PERIOD, InspectedFiles};

/// Checks that `https://` can be served; `None` where it is not configured.
pub fn https(config: &HttpConfig, context: &DoctorContext<'_>) -> Option<Check> {
    let found = tls::inspect(config, context.state)?;
    Some(judge(config, found, clock::FLOOR.now_millis()))
}

/// Checks that the command line can reach this box without options.
pub fn local_access(config: &HttpConfig) -> Option<Check> {
    let is_tls = |address: &ListenAddress| matches!(address, ListenAddress::Tls(_));
    config.listen.iter().all(is_tls).then(|| {
        let advice = "add \"unix:ledge.sock\" to http.listen; without it `ledge top`, `ledge features` and `ledge update` \
                      need --url, --ca-file and --key-file on this machine too";
        Check::warn("local access", "http.listen has only https:// addresses", advice)
    })
}

fn judge(config: &HttpConfig, found: Result<InspectedFiles, tls::ServerTlsError>, now_ms: u64) -> Check {
    let name = "https";
    let InspectedFiles { certificate, crl_due_ms, .. } = match found {
        Ok(found) => found,
        Err(error) if config.tls.self_signed => {
            return Check::warn(name, error.to_string(), "the server makes a certificate when it starts");
        }
        Err(error) => {
            let advice = "correct it; until then a running server keeps the previous certificate, and a server that \
                          starts does not serve https://";
            return Check::fail(name, error.to_string(), advice);
        }
    };

    let until = clock::rfc3339(certificate.not_after_ms);
    let detail = format!("a certificate for {}, until {until}", certificate.shown_names());
    let left_ms = certificate.not_after_ms.saturating_sub(now_ms);
    if left_ms == 0 {
        Check::fail(name, format!("{detail}: it has expired"), "renew the certificate: callers refuse it")
    } else if now_ms < certificate.not_before_ms {
        let from = clock::rfc3339(certificate.not_before_ms);
        let advice = "correct the clock of this machine, or install a certificate that is valid now; until then a \
                      running server keeps the previous certificate";
        Check::fail(name, format!("{detail}: it is not valid before {from}"), advice)
    } else if u128::from(left_ms) < EXPIRY_WARNING_PERIOD.as_millis() {
        Check::warn(
            name,
            detail,
            "renew the certificate: it expires soon; the server reads new files without a restart",
        )
    } else if config.tls.self_signed {
        let advice = format!(
            "the certificate is self-signed: compare the fingerprint {} on the client, and set http.tls.certificate_file \
             to a certificate of your authority",
            certificate.shown_fingerprint()
        );
        Check::warn(name, detail, advice)
    } else if let Some(due_ms) = crl_due_ms.filter(|due_ms| *due_ms <= now_ms) {
        let detail = format!(
            "{detail}; the list of revoked certificates should have been renewed at {}",
            clock::rfc3339(due_ms)
        );
        Check::warn(name, detail, "renew http.tls.client_crl_file: later revocations are not known here")
    } else {
        Check::ok(name, detail)
    }
}
