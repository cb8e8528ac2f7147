//! TLS: whether its files can be used, and how long the certificate lasts.

use ledge_base::clock;
use ledge_part::check::Check;
use ledge_part::section::Site;

use crate::config::{HttpConfig, ListenAddress};
use crate::tls::{self, Inspected, WARNED_BEFORE};

/// Whether `https://` can be served; `None` where it is not to be.
pub fn https(config: &HttpConfig, site: &Site<'_>) -> Option<Check> {
    let found = tls::inspect(config, site.state)?;
    Some(judge(config, found, clock::FLOOR.plausible_millis(clock::unix_millis())))
}

/// Whether the command line finds this box by itself.
pub fn local_access(config: &HttpConfig) -> Option<Check> {
    let is_tls = |address: &ListenAddress| matches!(address, ListenAddress::Tls(_));
    config.listen.iter().all(is_tls).then(|| {
        let advice = "add \"unix:ledge.sock\" to http.listen: without it `ledge top`, `ledge features` and `ledge update` need \
                      --url, --ca-file and --key-file here, too";
        Check::warn("local access", "every address in http.listen starts with https://", advice)
    })
}

fn judge(config: &HttpConfig, found: Result<Inspected, tls::ServerTlsError>, now_ms: u64) -> Check {
    let name = "https";
    let Inspected { certificate, crl_due_ms, .. } = match found {
        Ok(found) => found,
        Err(error) if config.tls.self_signed => {
            return Check::warn(name, error.to_string(), "the server makes itself a certificate when it starts");
        }
        Err(error) => {
            let advice = "correct it; until then a server that runs shows the certificate of before, and one that starts \
                          serves no https://";
            return Check::fail(name, error.to_string(), advice);
        }
    };
    let until = clock::rfc3339(certificate.not_after_ms);
    let detail = format!("a certificate for {}, until {until}", certificate.shown_names());
    let left_ms = certificate.not_after_ms.saturating_sub(now_ms);
    if left_ms == 0 {
        Check::fail(name, format!("{detail}: it has expired"), "renew it: callers refuse it")
    } else if now_ms < certificate.not_before_ms {
        let from = clock::rfc3339(certificate.not_before_ms);
        let advice = "correct the clock of this machine, or take one that has begun; until then a server that runs shows the \
                      certificate of before";
        Check::fail(name, format!("{detail}: it begins at {from} only"), advice)
    } else if u128::from(left_ms) < WARNED_BEFORE.as_millis() {
        Check::warn(name, detail, "renew it: it is about to expire; the server takes up the new files by itself")
    } else if config.tls.self_signed {
        let advice = format!(
            "it is signed by this box alone: compare the fingerprint {} where you connect, and set \
             http.tls.certificate_file to one that your authority signed",
            certificate.shown_fingerprint()
        );
        Check::warn(name, detail, advice)
    } else if let Some(due_ms) = crl_due_ms.filter(|due_ms| *due_ms <= now_ms) {
        let detail =
            format!("{detail}; the list of revoked certificates was due to be renewed {}", clock::rfc3339(due_ms));
        Check::warn(name, detail, "renew http.tls.client_crl_file: what was revoked since is not known here")
    } else {
        Check::ok(name, detail)
    }
}
