"""Words that facts are made of; all common, so that most tokenizers give them one or two tokens."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CITIES = _words(
    "Paris London Berlin Madrid Rome Vienna Dublin Lisbon Athens Prague Warsaw Oslo Moscow Cairo Delhi Tokyo"
    " Boston Chicago Dallas Denver Miami Houston Seattle Toronto Sydney Melbourne Manchester Liverpool"
    " Birmingham Edinburgh Glasgow Cambridge Oxford Bristol Hamburg Munich Milan Venice Florence Barcelona"
)

PEOPLE = _words(
    "Alice Peter Maria Thomas Helen Robert Laura James Emma Daniel Sarah Michael Anna David Julia Martin"
    " Susan George Clara Henry Rachel Simon Diana Frank Nancy Victor Grace Oscar Linda Walter"
)

THINGS = _words(
    "table window garden bridge river mountain forest island castle tower village market church school"
    " kitchen bottle basket hammer ladder mirror candle carpet blanket pocket wallet jacket button ribbon"
    " pencil paper letter envelope stamp camera guitar piano violin trumpet drum engine wheel bicycle train"
    " boat harbor anchor rope sail cloud storm winter summer spring autumn morning evening apple orange lemon"
    " cherry grape onion potato carrot tomato bread butter cheese sugar pepper honey coffee silver copper"
    " stone marble crystal feather leather cotton horse rabbit turtle eagle spider monkey tiger lion"
)
