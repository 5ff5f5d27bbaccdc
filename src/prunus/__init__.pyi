"""The public names as editors and type checkers see them; tests/test_face.py keeps this file equal to run time."""

from prunus import certificates as certificates
from prunus import contract as contract
from prunus import data as data
from prunus import errors as errors
from prunus import graph as graph
from prunus import models as models
from prunus import operators as operators
from prunus import private as private
from prunus import pruning as pruning
from prunus import recovery as recovery
from prunus import report as report
from prunus import select as select
from prunus import sparse as sparse
from prunus import structure as structure
from prunus import study as study
from prunus import tangent as tangent
from prunus import theory as theory
from prunus import training as training
from prunus.certificates import Ball as Ball
from prunus.certificates import Box as Box
from prunus.certificates import Samples as Samples
from prunus.certificates import certify as certify
from prunus.certificates import certify_labels as certify_labels
from prunus.certificates import certify_statistically as certify_statistically
from prunus.certificates import equivalent as equivalent
from prunus.certificates import plan as plan
from prunus.contract import Duration as Duration
from prunus.contract import Masks as Masks
from prunus.errors import BadFile as BadFile
from prunus.errors import BadInput as BadInput
from prunus.errors import PrunusError as PrunusError
from prunus.pruning import allocations as allocations
from prunus.pruning import check_pattern as check_pattern
from prunus.pruning import check_score as check_score
from prunus.pruning import find_masks as find_masks
from prunus.pruning import patterns as patterns
from prunus.pruning import prune as prune
from prunus.pruning import scores as scores
from prunus.recovery import reconstruct as reconstruct
from prunus.sparse import compress as compress
from prunus.structure import shrink as shrink

__version__: str
