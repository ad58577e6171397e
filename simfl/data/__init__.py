"""The shelf of data sets. A component elsewhere is named `package.module:Class` in an experiment file."""

from simfl.data.aqua import Aqua
from simfl.data.base import Data
from simfl.data.clove import Clove
from simfl.data.coco_qa import CocoQa
from simfl.data.debian_manuals import DebianManuals
from simfl.data.digits import Digits
from simfl.data.docvqa_imdb import MpDocvqa, SpDocvqa
from simfl.data.domains import Domains
from simfl.data.due import Due
from simfl.data.fldocvqa import Fldocvqa
from simfl.data.gqa import Gqa
from simfl.data.hf_disk import HfDisk
from simfl.data.image_folder import ImageFolder
from simfl.data.image_lists import ImageLists
from simfl.data.joined import Joined
from simfl.data.multi_docqa import MultiDocqa
from simfl.data.nlvr2 import Nlvr2
from simfl.data.own import Own
from simfl.data.pdf_folder import PdfFolder
from simfl.data.pfl_docvqa import PflDocvqa
from simfl.data.prototypes import Prototypes
from simfl.data.provider_invoices import ProviderInvoices
from simfl.data.real_words import RealWords
from simfl.data.scene_text import SceneText
from simfl.data.scene_vqa import SceneVqa
from simfl.data.snli_ve import SnliVe
from simfl.data.sroie import Sroie
from simfl.data.tabfact import TabFact
from simfl.data.vcr import Vcr
from simfl.data.vizwiz import VizWiz
from simfl.data.vqa_v2 import VqaV2
from simfl.data.word5 import Word5
from simfl.data.word_lists import WordLists
from simfl.data.wtq import Wtq
from simfl.data.zugferd import Zugferd

DATA: dict[str, type[Data]] = {
    "aqua": Aqua,
    "clove": Clove,
    "coco_qa": CocoQa,
    "debian_manuals": DebianManuals,
    "digits": Digits,
    "domains": Domains,
    "due": Due,
    "fldocvqa": Fldocvqa,
    "gqa": Gqa,
    "hf_disk": HfDisk,
    "image_folder": ImageFolder,
    "image_lists": ImageLists,
    "joined": Joined,
    "mp_docvqa": MpDocvqa,
    "multi_docqa": MultiDocqa,
    "nlvr2": Nlvr2,
    "own": Own,
    "pdf_folder": PdfFolder,
    "pfl_docvqa": PflDocvqa,
    "prototypes": Prototypes,
    "provider_invoices": ProviderInvoices,
    "real_words": RealWords,
    "scene_text": SceneText,
    "scene_vqa": SceneVqa,
    "snli_ve": SnliVe,
    "sp_docvqa": SpDocvqa,
    "sroie": Sroie,
    "tabfact": TabFact,
    "vcr": Vcr,
    "vizwiz": VizWiz,
    "vqa_v2": VqaV2,
    "word5": Word5,
    "word_lists": WordLists,
    "wtq": Wtq,
    "zugferd": Zugferd,
}
