"""Abbreviations that the Punkt models lack, by language: hand-written, lower case, no last stop.

Punkt learned its abbreviations from newspapers, so reference marks ("Fig. 2"), Latin
("et al.") and many titles are unknown to it. Four kinds, because a flat list would join
"See No. 5" only by also joining "The answer was no. We left.":

- ``titles``: never end a sentence when written with a capital ("Rev. Smith").
- ``joining``: never end a sentence ("e.g.", "cf.").
- ``numeric``: don't end a sentence when a number or numeral follows ("rev. 2", "Jan. 2021").
- ``weak``: may end a sentence; Punkt decides by the next word ("Inc. The" / "Inc. shares").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Abbreviations:
    """The four kinds for one language.

    dropped: words that Punkt takes for abbreviations and shouldn't.
    starters: frequent first words of sentences that Punkt's short list lacks.
    ordinals: "3." before a word is an ordinal number.
    """

    titles: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    numeric: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    ordinals: bool = False


_TITLES = " mr mrs ms dr prof rev st"
"""Titles before names that stay as they are in texts of any language."""


def _list(
    titles: str = "",
    joining: str = "",
    numeric: str = "",
    weak: str = "",
    dropped: str = "",
    starters: str = "",
    ordinals: bool = False,
) -> Abbreviations:
    return Abbreviations(
        frozenset((titles + _TITLES).split()),
        frozenset(joining.split()),
        frozenset(numeric.split()),
        frozenset((weak + " al etc").split()),
        frozenset(dropped.split()),
        frozenset(starters.split()),
        ordinals,
    )


NO_ABBREVIATIONS = _list()

ABBREVIATIONS: dict[str, Abbreviations] = {
    "en": _list(
        titles="mr mrs ms mx dr prof rev fr gen col lt ltcol capt cpt cmdr cdr sgt cpl pvt maj adm"
        " hon gov sen rep reps pres supt messrs mmes mme mlle msgr det insp st",
        joining="e.g i.e eg ie cf viz vs approx incl excl resp ca",
        numeric="fig figs sec secs sect sects no nos nr vol vols ch chs chap chaps art arts eq eqs"
        " ref refs tab tabs tbl p pp para paras par pt pts rev ver v app appx cl div reg col ln"
        " ex bk op opp approx ca c tel ext rm n bd jan feb mar apr jun jul aug sep sept oct nov"
        " dec est r b d fl circ item cap sched"
        " stat pub kv exod lev deut ps prov isa jer ezek matt cor gal eph thess heb pet",
        weak="dept est inc ltd llc plc co corp bros univ assn assoc intl natl govt ave blvd rd mt"
        " hwy jr sr esq ph.d m.d b.a m.a b.sc m.sc b.s m.s m.phil d.phil ll.b ll.m e.u u.n u.s"
        " u.k u.s.a a.m p.m a.d b.c b.c.e c.e ibid seq orig transl eds ed pub repr supp suppl"
        " translit trans tr lit spp var subsp a.k.a ser mon tue tues wed thu thur thurs fri feb"
        " mar apr jun jul aug sept misc avg lbs hrs dist tel ext ft ph n.b q.v d.c n.y l.a",
        dropped="ok ill ore mg wash",
        starters="a after also an another as at because before between by during each for from her"
        " here his how its later my no on one only other our she such that their then those to"
        " today two until we what where which who why with within without you your",
    ),
    "de": _list(
        titles="hr fr dr prof st ing dipl mag frl hl abg",
        joining="z.b d.h bzw ca vgl sog u.a v.a i.d.r o.ä m.e evtl ggf inkl exkl insb zzgl bspw"
        " gem lt s.o s.u z.t u.u i.a allg ehem geb gest",
        numeric="nr nrn bd bde abb abs art kap s tab ziff anm aufl jg sp abschn fig gl rn rz st"
        " jan feb febr mär apr jun jul aug sep sept okt nov dez tel hausnr v n",
        weak="usw etc usf u.v.m co kg mio mrd str tel abt max min std jh jhd n.chr v.chr chr",
        ordinals=True,
    ),
    "fr": _list(
        titles="m mm mme mmes mlle mlles dr me pr st ste mgr",
        joining="c.-à-d p.ex ex cf env",
        numeric="p pp fig no n art chap vol t tab éq ref réf al av janv févr avr juil sept oct nov"
        " déc tél",
        weak="etc cie éd ed coll av apr j.-c boul bd hab",
    ),
    "es": _list(
        titles="sr sra srta sres dr dra d dña ing lic arq prof profa sto sta fr mons gral cnel",
        joining="p.ej ej p aprox cf vs",
        numeric="pág págs p pp fig núm no nº art arts cap vol t tab ec ref ene feb mar abr may jun"
        " jul ago sept oct nov dic tel",
        weak="etc ud uds vd vds cía avda av ee.uu a.c d.c s.a dpto máx mín",
    ),
    "it": _list(
        titles="sig sigg sig.ra dott dott.ssa dr prof prof.ssa ing avv arch on mons gen s",
        joining="es p.es cfr ca c.d",
        numeric="pag pagg p pp fig n nn art artt cap vol tab eq rif gen feb mar apr mag giu lug ago"
        " set sett ott nov dic tel",
        weak="ecc etc a.c d.c s.p.a s.r.l f.lli",
    ),
    "pt": _list(
        titles="sr sra srta sres dr dra prof profa eng d exmo exma st sta",
        joining="p.ex ex cf aprox",
        numeric="pág págs p pp fig n nº no art arts cap vol tab eq ref jan fev mar abr mai jun jul"
        " ago set out nov dez tel",
        weak="etc av ltda cia a.c d.c s.a máx mín",
    ),
    "nl": _list(
        titles="dhr mevr mw dr drs ir ing prof mr ds st",
        joining="bijv bv d.w.z o.a m.b.t i.v.m t.o.v t.a.v m.n ca resp incl excl vgl nl z.g zgn",
        numeric="nr nrs blz p pp fig afb art hfst hfdst par vol dl tab jan feb mrt apr jun jul aug"
        " sept okt nov dec tel",
        weak="enz etc e.d n.chr v.chr max min",
    ),
    "pl": _list(
        titles="dr prof inż mgr ks św hab gen płk",
        joining="np tzn tj tzw m.in ok ww pt ur zm im al ul",
        numeric="nr str s rys tab rozdz art ust pkt t poz godz tel",
        weak="itd itp r w wg",
        ordinals=True,
    ),
    "cs": _list(
        titles="dr prof ing mgr doc sv mudr judr",
        joining="např tzv tj resp cca srov",
        numeric="č čj str s obr tab kap odst čl sv roč tel",
        weak="atd apod aj mil mld n.l př.n.l",
        ordinals=True,
    ),
    "ru": _list(
        titles="г-н г-жа им проф акад ген ул пр св",
        joining="т.е напр т.н т.к см ср ок",
        numeric="рис табл стр с гл п пп ст т разд прим тел илл",
        weak="т.д т.п др г гг в вв н.э тыс млн млрд руб",
    ),
    "sv": _list(
        joining="t.ex bl.a dvs d.v.s s.k ca jfr inkl exkl resp",
        numeric="nr s sid fig kap bd tab",
        weak="etc osv m.m m.fl kl f.kr e.kr",
    ),
    "da": _list(
        titles="hr fr dr",
        joining="f.eks bl.a dvs d.v.s ca jf inkl evt pga",
        weak="osv mv mio mia",
        numeric="nr s fig kap bd tab stk",
        ordinals=True,
    ),
    "no": _list(
        titles="hr fr dr",
        joining="f.eks bl.a dvs ca jf inkl evt pga",
        weak="osv mv mill mrd",
        numeric="nr s fig kap bd tab",
        ordinals=True,
    ),
    "fi": _list(
        joining="esim ts mm ns ks vrt n",
        numeric="s kpl nro kuv",
        ordinals=True,
        weak="jne ym yms eaa jaa eKr jKr",
    ),
    "et": _list(joining="nt nn st vt", numeric="lk nr joon", weak="jne jt", ordinals=True),
    "sl": _list(
        titles="dr prof g ga",
        joining="npr tj t.i oz",
        numeric="št str sl čl",
        weak="itd ipd",
        ordinals=True,
    ),
    "tr": _list(
        titles="dr prof doç av sn",
        joining="örn bkz yy",
        numeric="no s sf sy cilt",
        weak="vb vs vd m.ö m.s",
        ordinals=True,
    ),
    "el": _list(
        titles="κ κα δρ καθ αγ",
        joining="π.χ δηλ βλ",
        numeric="αρ σελ σ εικ κεφ πιν",
        weak="κ.λπ κλπ κ.ά μ.χ π.χ",
    ),
    "ro": _list(
        titles="dl dna d-na dr prof ing sf",
        joining="ex cca",
        weak="etc d.hr î.hr",
        numeric="nr pag p fig art cap vol tab alin lit",
    ),
    "vi": _list(titles="ts gs pgs ths bs ks tp ông bà", joining="vd", numeric="tr số", weak="v.v"),
    "hu": _list(
        titles="dr prof ifj id",
        joining="pl ill kb vö ún",
        numeric="sz o old ábra",
        weak="stb",
        ordinals=True,
    ),
    "hi": _list(
        joining="डॉ प्रो श्री पं कु सु मो ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी क्यू आर एस टी यू वी"
        " डब्ल्यू एक्स वाई जेड",
        numeric="सं पृ",
    ),
    "ar": _list(joining="د أ م ص ج ت هـ", numeric="ص ج رقم"),
}
"""By ISO 639-1 code; a language that is not here has none."""
