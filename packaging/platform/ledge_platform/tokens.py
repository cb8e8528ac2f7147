"""Signing keys in PKCS #11 tokens: ECDSA P-256 keys that never leave a smart card, a USB token or an HSM.

`NAME.hsm` is one line, the token and the key in it: `hsm:2?label=TOKEN`. The module of the token is a library that is
loaded into this process, so only the environment names it, never a file that may lie on a stick.

A token locks after a few wrong PINs. Therefore a PIN is tried once, and one from the environment only while the last
attempt was right.
"""
import os
import re
from urllib.parse import parse_qsl, quote_plus, urlsplit

from securesystemslib.exceptions import UnsupportedLibraryError, UnverifiedSignatureError
from securesystemslib.signer import HSMSigner

from .asking import ask, from_environment
from .errors import Failure

SUFFIX, MODULE, PIN = ".hsm", "PYKCS11LIB", "LEDGE_PLATFORM_PIN"
LOCKED = "its PIN was wrong too often. Unlock it with its PUK or SO PIN"
CURVE, SCHEME = "secp256r1", "ecdsa-sha2-nistp256"
FORM = re.compile(r"hsm:(\d{1,5})\?label=(\S{1,128})")


def file_of(public_file):
    return public_file.with_name(public_file.name.replace(".pub.pem", SUFFIX))


def read(path):
    """(the number of the key, the label of the token) of a `NAME.hsm`."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not FORM.fullmatch(text):
        raise Failure(f"{path} names no key of a token: it is one line like hsm:2?label=TOKEN, of `key import-token`")
    return int(urlsplit(text).path), dict(parse_qsl(urlsplit(text).query))["label"]


def uri_of(number, label):
    return f"hsm:{number}?label={quote_plus(label)}"


def library():
    """python-pkcs11, and the module that the environment names."""
    try:
        import pkcs11
    except ImportError:
        raise Failure("keys in tokens need python-pkcs11: `packaging/platform/setup --pkcs11`") from None
    path = os.environ.get(MODULE)
    if not path:
        raise Failure(f"set {MODULE} to the PKCS #11 module of the token, such as /usr/lib/softhsm/libsofthsm2.so")
    try:
        return pkcs11, pkcs11.lib(path)
    except (pkcs11.PKCS11Error, RuntimeError, OSError) as error:
        raise Failure(f"the PKCS #11 module {path} ({MODULE}) cannot be used: {described(error)}") from None


def described(error):
    return str(error).strip() or type(error).__name__


def find(label=None):
    """The token called LABEL, or the only one there is."""
    pkcs11, module = library()
    try:
        every = list(module.get_tokens(token_flags=pkcs11.TokenFlag.TOKEN_INITIALIZED))
    except pkcs11.PKCS11Error as error:
        raise Failure(f"the tokens cannot be read: {described(error)}") from None
    there = ", ".join(sorted(repr(token.label) for token in every)) or "none"
    found = [token for token in every if label in (None, token.label)]
    if not found:
        raise Failure(f"the token {label!r} is not here (there is: {there})" if label else "no token is here")
    if len(found) > 1:
        raise Failure(f"there are {len(found)} tokens called {label!r}: leave one in" if label
                      else f"there are several tokens ({there}): name one with --token")
    if not found[0].label or is_unusable(found[0].label):
        raise Failure(f"the label of the token, {found[0].label!r}, is not 1 to 100 printable characters")
    return found[0]


def is_unusable(label):
    return len(quote_plus(label)) > 128 or not label.isprintable()


def absence(path):
    """Why the key of PATH cannot sign now; None if its token is here."""
    label = read(path)[1]
    try:
        find(label)
    except Failure as failure:
        return f"in the token {label!r}: {failure}"
    return None


def refuse_locked(token, key_name, from_environment):
    from pkcs11 import TokenFlag
    if token.flags & TokenFlag.USER_PIN_LOCKED:
        raise Failure(f"the token {token.label!r} is locked: {LOCKED}")
    if from_environment and token.flags & (TokenFlag.USER_PIN_FINAL_TRY | TokenFlag.USER_PIN_COUNT_LOW):
        raise Failure(
            f"the last PIN of the token {token.label!r} was wrong, and it locks after a few: run this in a terminal "
            f"without {PIN}, and type the PIN of {key_name}"
        )


def pin_of(token, key_name):
    refuse_locked(token, key_name, from_environment(key_name, PIN)[0] is not None)
    return ask(key_name, PIN, f"PIN of the token {token.label} for the key {key_name}: ", "PIN")


class Session:
    """A session of a token with its PIN."""

    def __init__(self, token, pin, writing=False):
        self.token, self.pin, self.writing = token, pin, writing

    def __enter__(self):
        with Errors(self.token):
            self.session = self.token.open(user_pin=self.pin, rw=self.writing)
        return self.session

    def __exit__(self, *_):
        self.session.close()


class Errors:
    """Says the errors of python-pkcs11 as people read them, without the PIN."""

    def __init__(self, token):
        self.label = token.label

    def __enter__(self):
        return self

    def __exit__(self, _kind, error, _trace):
        import pkcs11
        if isinstance(error, (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange)):
            text = "the PIN is wrong. It was tried once; a token locks after a few"
        elif isinstance(error, pkcs11.PinLocked):
            text = f"it is locked: {LOCKED}"
        elif isinstance(error, (pkcs11.NoSuchToken, pkcs11.TokenNotPresent, pkcs11.DeviceRemoved)):
            text = "it is not here any more"
        elif isinstance(error, (pkcs11.PKCS11Error, UnsupportedLibraryError, ValueError)):
            text = described(error)
        else:
            return False
        raise Failure(f"the token {self.label!r}: {text}") from None


class TokenSigner(HSMSigner):
    """Signs with a key that a token has."""

    def sign(self, payload):
        with Errors(find(self.token_label)):
            signature = super().sign(payload)
        try:
            self.public_key.verify_signature(signature, payload)
        except UnverifiedSignatureError:
            raise Failure(
                f"the token {self.token_label!r}: its key {self.hsm_keyid} is not the one of the public half"
            ) from None
        return signature


def signer(path, public, key_name):
    """Opens the key once, so that a wrong PIN ends a verb before it writes anything."""
    number, label = read(path)
    if public.scheme != SCHEME:
        raise Failure(f"{path}: a key in a token is an ECDSA P-256 key")
    token = find(label)
    pin = pin_of(token, key_name)
    with Session(token, pin):
        pass
    return TokenSigner(number, public, lambda _: pin, label)


def bring(label, number, key_name):
    """(reference, public half) of a key that a token has. A signature proves that the token has its private half."""
    token = find(label)
    pin = pin_of(token, key_name)
    with Session(token, pin), Errors(token):
        pass  # so that a wrong PIN is tried once
    with Errors(token):
        _, public = HSMSigner.import_(number, token.label, lambda _: pin)
    return proven(token, number, public, pin)


def proven(token, number, public, pin):
    if public.scheme != SCHEME:
        raise Failure(f"the token {token.label!r}: key {number} is not an ECDSA P-256 key, which boxes accept")
    TokenSigner(number, public, lambda _: pin, token.label).sign(b"ledge-platform key import-token")
    return uri_of(number, token.label), public


def make(label, number, key_name):
    """As `bring`, with a key that is made in the token and never leaves it."""
    pkcs11, _ = library()
    from pkcs11.util import biginteger
    from pkcs11.util.ec import encode_named_curve_parameters
    token = find(label)
    pin = pin_of(token, key_name)
    identity = biginteger(number)
    with Session(token, pin, writing=True) as session, Errors(token):
        if any(True for _ in session.get_objects({pkcs11.Attribute.ID: identity})):
            raise Failure(
                f"the token {token.label!r} has a key {number} already: `key import-token` takes it, --id makes another"
            )
        curve = session.create_domain_parameters(
            pkcs11.KeyType.EC, {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters(CURVE)}, local=True)
        curve.generate_keypair(
            id=identity, label=key_name, store=True,
            private_template={pkcs11.Attribute.EXTRACTABLE: False, pkcs11.Attribute.SENSITIVE: True})
    with Errors(token):
        _, public = HSMSigner.import_(number, token.label, lambda _: pin)
    return proven(token, number, public, pin)
